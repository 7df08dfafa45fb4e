// Command damage makes the home that the show 2-damage does harm to: its log has
// several blocks, is sealed, and was closed in good order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/events"
	"github.com/gatebus/gatebus/events/policy"
	"github.com/gatebus/gatebus/events/runtime"
)

func main() {
	home := flag.String("home", "", "the home to make")
	commits := flag.Int("commits", 70, "how many large commits")
	flag.Parse()
	if err := fill(context.Background(), *home, *commits); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// fill writes commits of 300 KB, so that a few make a block of the store.
func fill(ctx context.Context, home string, commits int) (err error) {
	b, err := bus.Open(ctx, bus.Options{Home: home})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	m := bus.NewModel(b)
	if err := b.Load(ctx); err != nil {
		return err
	}
	id, err := b.HomeID()
	if err != nil {
		return err
	}
	tell := func(cmd runtime.Command) error {
		_, err := m.Runtimes.Dispatch(ctx, "default", id, bus.Meta{Actor: "runtime", Principal: "runtime"}, cmd)
		return err
	}
	if err := tell(runtime.Boot{Runtime: "fill", Embedded: true}); err != nil {
		return err
	}
	if err := b.Seal(m.Runtimes, "fill"); err != nil {
		return err
	}
	for i := range commits {
		rules := make([]events.ApprovalRule, 1500) // in the event as they were before, too
		for j := range rules {
			rules[j] = events.ApprovalRule{Server: fmt.Sprintf("marker-%d-%d-%s", i, j, strings.Repeat("x", 60)), Risk: "high", Approval: "prompt"}
		}
		_, err := m.Policies.Dispatch(ctx, "fill", fmt.Sprint("p", i%8), bus.Meta{Actor: "fill", Principal: "fill"}, policy.Set{
			Level: policy.Level{Level: policy.LevelGateway}, After: events.Policy{Rules: rules}, Digest: fmt.Sprint(i),
		})
		if err != nil {
			return err
		}
	}
	return tell(runtime.Close{Runtime: "fill", Reason: "stopped"})
}
