// Leakcheck looks with the rules of gitleaks for secrets in files and folders. It
// prints each finding without the secret, and ends with 1 when there is one.
//
// What is no secret is said here, each with its reason; no rule is off as a whole.
// -skip names a folder or file that holds keys on purpose.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/zricethezav/gitleaks/v8/detect"
	"github.com/zricethezav/gitleaks/v8/logging"
	"github.com/zricethezav/gitleaks/v8/report"
)

func main() {
	var skip []string
	flag.Func("skip", "a path below one of the arguments that is passed over, for example keys", func(s string) error {
		skip = append(skip, filepath.FromSlash(s))
		return nil
	})
	flag.Parse()
	logging.Logger = logging.Logger.Level(zerolog.Disabled)
	found, err := check(flag.Args(), skip)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if found > 0 {
		os.Exit(1)
	}
}

// check looks through all files below the roots and returns how many findings are
// none of the known ones.
func check(roots, skip []string) (found int, err error) {
	d, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		return 0, err
	}
	d.MaxDecodeDepth = 1 // each more takes as long again
	files, size := 0, 0
	known := map[string]int{}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if rel, err := filepath.Rel(root, path); err == nil && slices.Contains(skip, rel) {
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if !e.Type().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files, size = files+1, size+len(text)
			keys := key.Match(text)
			for _, f := range d.DetectString(string(text)) {
				if why := public(f, keys); why != "" {
					known[why]++
					continue
				}
				found++
				fmt.Printf("%s: line %d: %s, %d characters, behind %q\n", path, f.StartLine+1, f.RuleID, len(f.Secret), before(f))
			}
			return nil
		})
		if err != nil {
			return found, err
		}
	}
	fmt.Printf("gitleaks: %d files, %d bytes, %d findings", files, size, found)
	for _, why := range slices.Sorted(maps.Keys(known)) {
		fmt.Printf(", %d %s", known[why], why)
	}
	fmt.Println()
	return found, nil
}

// before is what stands before a secret in what matched.
func before(f report.Finding) string {
	text, _, ok := strings.Cut(f.Match, f.Secret)
	if !ok {
		return ""
	}
	return text
}

var (
	digest = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$|^[0-9a-f]{12,16}$`)
	// id is one of ours, the end of a ULID or of a digest behind a word.
	id = regexp.MustCompile(`^[a-z]{1,4}-([0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{16})$`)
	// key is one that follows its first line, in texts that are quoted in others too.
	key = regexp.MustCompile(`-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\+[nrt])*[A-Za-z0-9+/=]{16}`)
)

// public says why a finding is no secret, or nothing. keys says whether the text has
// a private key: the rule for them takes what is between their first and last lines
// for one, a marker of redaction too.
func public(f report.Finding, keys bool) string {
	switch {
	case f.RuleID == "generic-api-key" && digest.MatchString(f.Secret):
		return "digests"
	case f.RuleID == "generic-api-key" && id.MatchString(f.Secret):
		return "ids"
	case f.RuleID == "private-key" && !keys:
		return "private keys of which the first and last line are left"
	}
	return ""
}
