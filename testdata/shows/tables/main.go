// Tables runs the program over every row of the security tables in testdata and
// prints, for each table, how many rows held and which did not. A half of it is a
// file beside this one that adds itself to halves.
//
// With -plant the answers are spoilt, and every table must notice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gatebus/gatebus/testdata/shows/show"
)

// tables is one run.
type tables struct {
	bin   string // the program gatebus
	dir   string // the folder testdata of the repository
	plant bool
}

// halves are what can be run, by the name of its flag.
var halves = map[string]func(context.Context, tables) ([]result, error){}

// result is how one table went.
type result struct {
	table          string
	rows           int
	failed, others []string // with the row and the reason; others are not checked here
}

func main() {
	var t tables
	flag.StringVar(&t.bin, "bin", "", "the program gatebus")
	flag.StringVar(&t.dir, "dir", "testdata", "the folder of the tables")
	flag.BoolVar(&t.plant, "plant", false, "spoil the answers, which every table must notice")
	list := flag.Bool("list", false, "print the names of the halves")
	chosen := map[string]*bool{}
	for name := range halves {
		chosen[name] = flag.Bool(name, false, "run the half "+name)
	}
	flag.Parse()
	names := slices.Sorted(maps.Keys(halves))
	if *list {
		fmt.Println(strings.Join(names, "\n"))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var errs []error
	for _, name := range names {
		if *chosen[name] {
			results, err := halves[name](ctx, t)
			errs = append(errs, err, t.report(results))
		}
	}
	show.Verdict(errors.Join(errs...))
}

// report prints the results and says whether they are as wanted.
func (t tables) report(results []result) error {
	if len(results) == 0 {
		return errors.New("no table was run")
	}
	bad := 0
	for _, r := range results {
		fmt.Printf("%-16s %4d rows, %4d passed, %2d failed, %2d not of this show\n", r.table, r.rows, r.rows-failedRows(r), failedRows(r), len(r.others))
		if !t.plant {
			for _, line := range r.failed {
				fmt.Printf("  failed  %q\n", line)
			}
			for _, line := range r.others {
				fmt.Printf("  left    %q\n", line)
			}
		}
		if (len(r.failed) > 0) != t.plant || r.rows == 0 {
			bad++
		}
	}
	switch {
	case bad == 0:
		return nil
	case t.plant:
		return fmt.Errorf("%d tables noticed nothing", bad)
	}
	return fmt.Errorf("%d tables do not hold", bad)
}

// failedRows counts rows, of which one may fail in several ways.
func failedRows(r result) int {
	rows := map[string]bool{}
	for _, line := range r.failed {
		row, _, _ := strings.Cut(line, ": ")
		rows[row] = true
	}
	return len(rows)
}
