package caller

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// maxWait bounds how long a command waits for a person.
const maxWait = 15 * time.Minute

// Methods are those that it answers: tool/call. identify says for whom a request
// is: it checks the role of who asks and whether it may act for the principal named.
func (c *Caller) Methods(identify func(r *bus.Request, principal string) (client.Identity, error)) []bus.Method {
	return []bus.Method{{Name: "tool/call", Handle: func(ctx context.Context, r *bus.Request) (any, error) {
		if _, err := identify(r, ""); err != nil {
			return nil, err // whoever may not ask learns nothing of what he asked
		}
		var p client.ToolCall
		if err := r.Decode(&p); err != nil {
			return nil, err
		}
		id, err := identify(r, p.Principal)
		if err != nil {
			return nil, err
		}
		if len(p.Arguments) == 0 {
			p.Arguments = json.RawMessage("{}")
		}
		name, err := json.Marshal(p.Name)
		if err != nil {
			return nil, fault.New("tool.call", fault.InvalidInput, redact.Static("name: no text"))
		}
		params := make([]byte, 0, len(name)+len(p.Arguments)+24)
		params = append(append(params, `{"name":`...), name...)
		params = append(append(append(params, `,"arguments":`...), p.Arguments...), '}')
		return c.Call(ctx, id, Request{
			Turn: p.Turn, Name: p.Name, Params: redact.NewRaw(params),
			Wait: min(time.Duration(p.WaitMS)*time.Millisecond, maxWait),
			Call: "k-" + strings.ToUpper(r.Command), // the same command again is the same call
		})
	}}}
}
