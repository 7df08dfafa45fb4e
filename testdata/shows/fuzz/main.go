// Fuzz runs the fuzz targets of the module and prints what each did: executions,
// inputs that reached something new, crashes. Before that it prints the rates of
// "policy url check" and of "policy redact".
//
// What is found lies below -found, so that a later run goes on from it. With -keep
// the smallest inputs that together reach all that was reached go into the packages'
// testdata/fuzz, where go test runs them; an input that crashes is there at once.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

func main() {
	bin := flag.String("bin", "", "the program gatebus")
	f := &fuzzer{totals: map[string]*total{}}
	flag.StringVar(&f.root, "root", ".", "the module")
	flag.StringVar(&f.dir, "dir", "", "an empty directory to work in")
	flag.StringVar(&f.found, "found", "", "where what is found lies")
	flag.DurationVar(&f.each, "each", 5*time.Second, "how long each target runs, in each round")
	long := flag.Duration("for", 0, "rounds of all targets until so long is over; 0 is one round")
	flag.StringVar(&f.minimize, "minimize", "10x", "how long one input is made smaller")
	keep := flag.Bool("keep", false, "keep what is found in testdata/fuzz")
	only := flag.String("only", "", "only targets that match")
	flag.Parse()
	ctx := context.Background()
	show.Verdict(errors.Join(rates(ctx, *bin), f.show(ctx, regexp.MustCompile(*only), *long, *keep)))
}

// target is one fuzz target.
type target struct{ pkg, name string }

// total is what became of a target.
type total struct {
	runs           int
	took           time.Duration
	execs, new, of int64
	crash          string // of the last run, which ended all others
}

type fuzzer struct {
	root, dir, found, minimize string
	each                       time.Duration

	targets []target
	totals  map[string]*total
}

func (f *fuzzer) show(ctx context.Context, only *regexp.Regexp, long time.Duration, keep bool) error {
	if err := f.find(only); err != nil {
		return err
	}
	begun := time.Now()
	for _, t := range f.targets {
		if _, err := os.Stat(f.program(t.pkg)); err == nil {
			continue
		}
		if err := f.gotest(ctx, t.pkg, "-c", "-fuzz=.", "-o", f.program(t.pkg)); err != nil {
			return err
		}
	}
	fmt.Printf("%d targets, built in %v\n", len(f.targets), time.Since(begun).Round(time.Second))
	for begun = time.Now(); ; {
		for _, t := range f.targets {
			if err := f.run(ctx, t); err != nil {
				return err
			}
		}
		if time.Since(begun) >= long {
			break
		}
	}
	crashes := f.report()
	if keep {
		if err := f.keep(ctx); err != nil {
			return err
		}
	}
	if crashes > 0 {
		return fmt.Errorf("%d targets crash", crashes)
	}
	return nil
}

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)

// find finds the targets of the module.
func (f *fuzzer) find(only *regexp.Regexp) error {
	err := filepath.WalkDir(f.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && (e.Name() == ".git" || e.Name() == "testdata") {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(f.root, filepath.Dir(path))
		for _, m := range declared.FindAllSubmatch(text, -1) {
			if t := (target{pkg, string(m[1])}); only.MatchString(t.String()) {
				f.targets, f.totals[t.String()] = append(f.targets, t), &total{}
			}
		}
		return err
	})
	if err == nil && len(f.targets) == 0 {
		err = errors.New("there are no fuzz targets")
	}
	return err
}

func (t target) String() string { return t.pkg + " " + t.name }

// program is the compiled test of a package.
func (f *fuzzer) program(pkg string) string {
	return filepath.Join(f.dir, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// corpus is what go test runs of a target's inputs.
func (f *fuzzer) corpus(t target) string {
	return filepath.Join(f.root, t.pkg, "testdata", "fuzz", t.name)
}

func (f *fuzzer) gotest(ctx context.Context, pkg string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"test"}, args...), "./"+pkg)...)
	cmd.Dir = f.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go test of %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// progress is the last line of a run: how many executions, how many new inputs, and
// of how many.
var progress = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+) \(total: (\d+)\)`)

// run runs a target for a while. A crash is a result, and its last run.
func (f *fuzzer) run(ctx context.Context, t target) error {
	sum := f.totals[t.String()]
	if sum.crash != "" {
		return nil
	}
	// An execution that does not end is a crash too.
	ctx, cancel := context.WithTimeout(ctx, f.each+2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.program(t.pkg), "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+f.each.String(),
		"-test.fuzzminimizetime="+f.minimize, "-test.fuzzcachedir="+filepath.Join(f.found, t.pkg))
	cmd.Dir = filepath.Join(f.root, t.pkg)
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	sum.runs, sum.took = sum.runs+1, sum.took+time.Since(begun)
	lines := progress.FindAllSubmatch(out, -1)
	if len(lines) > 0 {
		numbers := make([]int64, 3)
		for i := range numbers {
			numbers[i], _ = strconv.ParseInt(string(lines[len(lines)-1][1+i]), 10, 64) // digits
		}
		sum.execs, sum.new, sum.of = sum.execs+numbers[0], sum.new+numbers[1], numbers[2]
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it does not end: %w", ctx.Err())
	}
	if err != nil {
		sum.crash = fmt.Sprintf("%v\n%s", err, out[max(0, len(out)-6000):])
		return nil
	}
	if len(lines) == 0 || sum.execs == 0 {
		return fmt.Errorf("%s executed nothing:\n%s", t, out)
	}
	return nil
}

// report prints all totals and returns how many targets crash.
func (f *fuzzer) report() (crashes int) {
	fmt.Printf("  %-44s %12s %10s %6s %7s %s\n", "target", "executions", "a second", "new", "inputs", "crashes")
	for _, t := range f.targets {
		sum := f.totals[t.String()]
		crashed := 0
		if sum.crash != "" {
			crashed, crashes = 1, crashes+1
		}
		fmt.Printf("  %-44s %12d %10.0f %6d %7d %d\n", t, sum.execs, float64(sum.execs)/sum.took.Seconds(), sum.new, sum.of, crashed)
	}
	for _, t := range f.targets {
		if sum := f.totals[t.String()]; sum.crash != "" {
			fmt.Printf("%s crashes: %s\n", t, sum.crash)
		}
	}
	return crashes
}

// largest is how large a file of an input may be that is kept.
const largest = 4 << 10

// keep puts the smallest inputs that together reach every block that all found ones
// reach, and the ones before them did not, into the packages' testdata/fuzz. What is
// there stays.
func (f *fuzzer) keep(ctx context.Context) error {
	for _, t := range f.targets {
		program := f.program(t.pkg) + ".cover"
		if _, err := os.Stat(program); err != nil {
			if err := f.gotest(ctx, t.pkg, "-c", "-cover", "-covermode=set", "-o", program); err != nil {
				return err
			}
		}
		kept, of, err := f.keepOf(ctx, t, program)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		fmt.Printf("  %-44s %d of %d inputs are kept\n", t, kept, of)
	}
	return nil
}

func (f *fuzzer) keepOf(ctx context.Context, t target, program string) (kept, of int, err error) {
	reached := map[string]bool{}
	// reach adds what a part of the inputs reaches, and says how much of that is new.
	reach := func(run string) (more int, err error) {
		profile := filepath.Join(f.dir, "profile")
		cmd := exec.CommandContext(ctx, program, "-test.run=^"+t.name+"$/"+run, "-test.coverprofile="+profile)
		cmd.Dir = filepath.Join(f.root, t.pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%w\n%s", err, out)
		}
		text, err := os.ReadFile(profile)
		for line := range strings.Lines(string(text)) {
			if block, hit, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasSuffix(hit, " 1") && !reached[block] {
				reached[block] = true
				more++
			}
		}
		return more, err
	}
	if _, err := reach(""); err != nil { // all that is there
		return 0, 0, err
	}
	found, err := os.ReadDir(filepath.Join(f.found, t.pkg, t.name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	inputs := map[string][]byte{}
	for _, e := range found {
		input, err := os.ReadFile(filepath.Join(f.found, t.pkg, t.name, e.Name()))
		if err != nil {
			return 0, 0, err
		}
		if _, err := os.Stat(filepath.Join(f.corpus(t), e.Name())); err != nil && len(input) <= largest {
			inputs[e.Name()] = input
		}
	}
	if err := os.MkdirAll(f.corpus(t), 0o755); err != nil {
		return 0, 0, err
	}
	for _, name := range slices.SortedFunc(maps.Keys(inputs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(inputs[a]), len(inputs[b])), bytes.Compare(inputs[a], inputs[b]))
	}) {
		at := filepath.Join(f.corpus(t), name)
		if err := os.WriteFile(at, inputs[name], 0o644); err != nil {
			return 0, 0, err
		}
		more, err := reach("^" + name + "$")
		if err != nil {
			return 0, 0, err // the input stays: it fails
		}
		if more > 0 {
			kept++
		} else if err := os.Remove(at); err != nil {
			return 0, 0, err
		}
	}
	_ = os.Remove(f.corpus(t)) // when it is empty
	return kept, len(found), nil
}
