package events_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gatebus/gatebus/events"
)

// historiesDir holds a directory for each version whose log was recorded: *.jsonl
// with the commits, never edited, and states.txt with what they fold to.
const historiesDir = "../testdata/histories"

var record = flag.String("record", "", "record the history of a new version, for example v2")

// line is one commit of a recorded history.
type line struct {
	Seq  uint64 `json:"seq"`
	Body []byte `json:"body"` // base64
}

// missing are the events of the table that are not in the log.
func (w *world) missing() []string {
	have := map[string]bool{}
	for _, c := range w.log {
		for _, n := range c.Names() {
			have[n] = true
		}
	}
	return slices.DeleteFunc(events.Names(), func(n string) bool { return have[n] })
}

// recordHistory writes the log of the first seeded world that has every event. It
// never overwrites one.
func recordHistory(t *testing.T, version string) {
	t.Helper()
	dir := filepath.Join(historiesDir, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var w *world
	for seed := uint64(1); w == nil || len(w.missing()) > 0; seed++ {
		w = newWorld(t, seeded(seed))
		for len(w.log) < 400 {
			w.step()
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for _, c := range w.log {
		body, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := enc.Encode(line{c.Seq, body}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "world.jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A log that an older version wrote decodes and folds in every decider, to the
// states that it folded to then (report 65). States are compared by digest, an
// aggregate a line; -update rewrites the digests, nothing rewrites the log.
func TestRecordedHistoriesStillFold_R208(t *testing.T) {
	t.Parallel()
	if *record != "" {
		recordHistory(t, *record)
	}
	files, err := filepath.Glob(filepath.Join(historiesDir, "*", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories below %s: %v", historiesDir, err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		m := newModels()
		next := uint64(1)
		for c := range readHistory(t, file) {
			if c.Seq != next {
				t.Fatalf("%s: commit %d follows %d", file, c.Seq, next-1)
			}
			next++
			m.fold(c)
			for _, n := range c.Names() {
				seen[n] = true
			}
		}
		states := m.print()
		var got strings.Builder
		for _, id := range slices.Sorted(maps.Keys(states)) {
			fmt.Fprintf(&got, "%s %x\n", id, sha256.Sum256([]byte(states[id])))
		}
		golden := strings.TrimSuffix(file, ".jsonl") + ".states.txt"
		if *events.Update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
			t.Errorf("%s folds to other states (-golden +now); -update if that is meant:\n%s", file, diff)
		}
	}
	for _, n := range events.Names() {
		if !seen[n] {
			t.Errorf("%s is in no recorded history; teach world.step to make it and record a history with -record", n)
		}
	}
}

func readHistory(t *testing.T, file string) func(yield func(*events.Commit) bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(*events.Commit) bool) {
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			c, err := events.Decode(l.Seq, l.Body)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if !yield(c) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}
