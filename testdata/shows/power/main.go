// Power takes the power away from a running gatebus again and again, for each
// durability, and compares what was acknowledged with what the next process
// finds; then it measures what the barrier costs.
//
// The home lies on a file system of its own, in a file that is its disk. At a
// random moment the process is stopped and the file copied: what was not written
// to it is gone. Of the pages that memory had behind what the copy has some are put
// there, for a disk takes them in any order, and the index of the store is now and
// then removed. Then gatebus starts on the copy.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/testdata/shows/show"
)

const (
	serves  = 30 * time.Second // until up serves
	writers = 16
	// imageSize holds the log of all rounds.
	imageSize = 1 << 30
	// page is what a file system writes at once.
	page = 4 << 10
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	dir := flag.String("dir", "", "an empty directory to work in")
	rounds := flag.Int("rounds", 4, "losses of power for each durability")
	slice := flag.Duration("slice", 200*time.Millisecond, "one measurement of the cost")
	slices := flag.Int("slices", 9, "measurements of each cost")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the moments")
	flag.Parse()
	fmt.Printf("seed %d, %d rounds for each durability, %d writers\n", *seed, *rounds, writers)
	err := run(*bin, *dir, *rounds, rand.New(rand.NewPCG(*seed, 1)))
	if err == nil {
		err = cost(*dir, *slice, *slices)
	}
	show.Verdict(err)
}

func run(bin, dir string, rounds int, random *rand.Rand) error {
	lost := map[string]int{}
	for _, durability := range []string{"process", "power"} {
		d := &disk{dir: filepath.Join(dir, durability), rand: random}
		m := &mode{disk: d, bin: bin, durability: durability}
		err := m.run(rounds)
		if err = errors.Join(err, d.umount()); err != nil {
			return fmt.Errorf("durability %s: %w", durability, err)
		}
		fmt.Printf("%s: %d acknowledged in %d rounds, lost %d; unacknowledged found %d; pages put back %d, indexes removed %d\n",
			durability, m.acked, rounds, m.lost, m.unacked, d.pages, d.indexes)
		lost[durability] = m.lost
		if m.acked == 0 {
			return errors.New("nothing was acknowledged: the show showed nothing")
		}
	}
	switch {
	case lost["power"] > 0:
		return fmt.Errorf("%d acknowledged commits are lost with durability power", lost["power"])
	case lost["process"] == 0:
		return errors.New("nothing is lost with durability process either: the disk is not cut off")
	}
	return nil
}

// mode is one durability.
type mode struct {
	*disk
	bin, durability      string
	acked, lost, unacked int
	seen                 uint64          // the log was read up to it
	open                 map[string]bool // grants since then: true when acknowledged
}

func (m *mode) run(rounds int) error {
	if err := m.make(); err != nil {
		return err
	}
	m.open = map[string]bool{}
	for n := range rounds + 1 { // one more to see what the last one left
		begun := time.Now()
		acked, lost := m.acked, m.lost
		if err := m.mount(); err != nil {
			return err
		}
		if err := m.round(n, n == rounds); err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		fmt.Printf("  %-7s round %2d: %5d acknowledged, %5d of those before lost, %4.1f s\n",
			m.durability, n+1, m.acked-acked, m.lost-lost, time.Since(begun).Seconds())
	}
	return nil
}

func (m *mode) round(n int, last bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := show.New(m.bin, m.mnt())
	if err != nil {
		return err
	}
	g.Args = []string{"--durability", m.durability}
	starting, done := context.WithTimeout(ctx, serves)
	p, err := g.Up(starting)
	done()
	if err != nil {
		return err
	}
	defer p.Kill()
	if err := m.check(ctx, g, last); err != nil || last {
		return err
	}
	load, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	var mu sync.Mutex
	for w := range writers {
		c, err := g.Dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		group.Go(func() {
			for i := 0; load.Err() == nil; i++ {
				capability := fmt.Sprintf("mcp.call:x%d-%d-%d", n, w, i)
				mu.Lock()
				m.open[capability] = false
				mu.Unlock()
				err := c.Do(load, "grant/add", client.Grant{Principal: fmt.Sprintf("p%d", w), Capability: capability}, nil)
				if err == nil {
					mu.Lock()
					m.open[capability] = true
					m.acked++
					mu.Unlock()
				}
			}
		})
	}
	time.Sleep(200*time.Millisecond + time.Duration(m.rand.IntN(400))*time.Millisecond)
	if err := p.Stop(); err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // answers that were sent arrive
	err = m.copy()
	stop()
	group.Wait()
	p.Kill()
	if err != nil {
		return err
	}
	return m.cut()
}

// check compares what was acknowledged since the last look with the log.
func (m *mode) check(ctx context.Context, g *show.Gatebus, last bool) error {
	c, err := g.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	rows, err := show.Audit(ctx, c, m.seen)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, row := range rows {
		m.seen = row.Seq
		if row.Name == "capability_granted" {
			var data struct{ Capability string }
			if err := json.Unmarshal(row.Data, &data); err != nil {
				return err
			}
			found[data.Capability] = true
		}
	}
	for capability, acked := range m.open {
		switch {
		case acked && !found[capability]:
			m.lost++
		case !acked && found[capability]:
			m.unacked++
		}
	}
	clear(m.open)
	out, _, code := g.CLI(ctx, "bus", "info", "-o", "json")
	var info client.BusInfo
	if err := json.Unmarshal([]byte(out), &info); code != 0 || err != nil || info.Durability != m.durability {
		return fmt.Errorf("bus info says %q, exit %d", out, code)
	}
	if !last {
		return nil
	}
	_, err = g.Rebuilt(ctx)
	return err
}

// disk is a file system in a file.
type disk struct {
	dir            string
	rand           *rand.Rand
	mounted        bool
	pages, indexes int
	live           map[string][]byte // the newest block files as memory had them at the cut
}

func (d *disk) image() string { return filepath.Join(d.dir, "disk") }
func (d *disk) mnt() string   { return filepath.Join(d.dir, "mnt") }

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// make makes an empty disk.
func (d *disk) make() error {
	if err := os.MkdirAll(d.mnt(), 0o700); err != nil {
		return err
	}
	f, err := os.Create(d.image())
	if err == nil {
		err = errors.Join(f.Truncate(imageSize), f.Close())
	}
	if err != nil {
		return err
	}
	return command("mkfs.ext4", "-q", "-F", d.image())
}

func (d *disk) mount() error {
	if d.mounted {
		return nil
	}
	err := command("mount", "-o", "loop", d.image(), d.mnt())
	d.mounted = err == nil
	return err
}

func (d *disk) umount() error {
	if !d.mounted {
		return nil
	}
	err := command("umount", d.mnt())
	d.mounted = err != nil
	return err
}

// copy takes the content of the disk at this moment. The process is stopped; a
// copy in which the kernel wrote on is no moment and taken again.
func (d *disk) copy() error {
	d.live = map[string][]byte{}
	for _, file := range d.blocks() {
		data, err := os.ReadFile(filepath.Join(d.mnt(), file))
		if err != nil {
			return err
		}
		d.live[file] = data
	}
	for range 50 {
		before, err := d.written()
		if err != nil {
			return err
		}
		if err := command("cp", "--sparse=always", d.image(), d.image()+".cut"); err != nil {
			return err
		}
		if after, err := d.written(); err != nil || after == before {
			return err
		}
	}
	return errors.New("the disk is never quiet")
}

// written says how much was written to the disk, in words of the kernel.
func (d *disk) written() (string, error) {
	source, err := exec.Command("findmnt", "-n", "-o", "SOURCE", d.mnt()).Output()
	if err != nil {
		return "", err
	}
	stat, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(strings.TrimSpace(string(source))), "stat"))
	if err != nil {
		return "", err
	}
	if f := strings.Fields(string(stat)); len(f) > 8 {
		return f[4] + " " + f[6] + " " + f[8], nil // writes, sectors, in flight
	}
	return "", fmt.Errorf("no statistics: %q", stat)
}

// blocks are the newest block files of the log and of the jobs.
func (d *disk) blocks() (files []string) {
	for _, stream := range []string{"GATEBUS_EVENTS", "GATEBUS_JOBS"} {
		all, _ := filepath.Glob(filepath.Join(d.mnt(), "home/bus/jetstream/*/streams", stream, "msgs/*.blk"))
		for _, file := range all {
			name, _ := filepath.Rel(d.mnt(), file)
			files = append(files, name)
		}
	}
	return files
}

// cut puts the copy in the place of the disk and makes it worse.
func (d *disk) cut() error {
	if err := d.umount(); err != nil {
		return err
	}
	if err := os.Rename(d.image()+".cut", d.image()); err != nil {
		return err
	}
	if err := d.mount(); err != nil {
		return err
	}
	for file, live := range d.live {
		path := filepath.Join(d.mnt(), file)
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if d.rand.IntN(2) == 0 {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		for at := (int(info.Size()) + page - 1) / page * page; at < len(live) && err == nil; at += page {
			if d.rand.IntN(2) == 0 {
				_, err = f.WriteAt(live[at:min(at+page, len(live))], int64(at))
				d.pages++
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if d.rand.IntN(3) > 0 {
		return nil
	}
	indexes, err := filepath.Glob(filepath.Join(d.mnt(), "home/bus/jetstream/*/streams/*/msgs/index.db"))
	for _, file := range indexes {
		err = errors.Join(err, os.Remove(file))
		d.indexes++
	}
	return err
}
