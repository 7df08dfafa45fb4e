package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/gatebus/gatebus/events/fault"
)

// A hint that names a verb that is not there sends a person the wrong way.
func TestHintsNameOnlyVerbsThatExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`gatebus( [a-z]+)( [a-z]+)?`)
	seen := 0
	for e := range fault.Table() {
		for _, words := range named.FindAllStringSubmatch(e.Hint, -1) {
			verb := strings.TrimSpace(words[1])
			cmd, rest, err := new(Main).root().Find([]string{verb})
			if err != nil || len(rest) > 0 {
				t.Errorf("%s: the hint %q names no verb", e.Code(), e.Hint)
				continue
			}
			if second := strings.TrimSpace(words[2]); second != "" && cmd.HasSubCommands() {
				if sub, _, err := cmd.Find([]string{second}); err != nil || sub == cmd {
					t.Errorf("%s: the hint %q names no verb below %s", e.Code(), e.Hint, verb)
				}
			}
			seen++
		}
	}
	if seen == 0 {
		t.Error("no hint names a verb; the pattern is wrong")
	}
}
