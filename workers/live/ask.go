package live

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events/connection"
	"github.com/gatebus/gatebus/workers/frame"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

//lint:file-ignore SA1019 what the stateless era has no more, the era of handshakes has

const (
	// maxAsks is how many requests of a server are passed on at once, and
	// asksPerMinute how many in the long run, where nothing else is said.
	maxAsks       = 16
	asksPerMinute = 120
	// askBurst is how many are passed on in a row, unless that is more than in a minute.
	askBurst = 64
	// maxOpen bounds those that are being answered or refused; what comes on top, of
	// a server that does not read, is dropped.
	maxOpen = 2 * MaxOpenAsks
	// MaxOpenAsks is the most that [Quota.Open] can be.
	MaxOpenAsks = 32
)

// Quota bounds the requests of a server that its client gets; those beyond are refused.
type Quota struct {
	// Open is how many are under way at once on a connection; 0 is 16.
	Open int
	// PerMinute is how many there are in the long run; 0 is 120.
	PerMinute int
}

// Ask is a request of the server to its client.
type Ask struct {
	Method string
	// Params are as sent, nil for none.
	Params []byte
}

// Asks say what a server of the handshake era may ask its client. The zero Asks are
// nothing.
type Asks struct {
	// Offers are the capabilities in the handshake, such as elicitation.form.
	Offers []string
	// Quota is how many requests the server may make.
	Quota Quota
	// Answer is called for each request that was offered, off the read loop and within
	// the quota. Its context ends with the connection, and when the server
	// takes the request back.
	Answer func(context.Context, *Conn, Ask) Reply
	// Tell gets what the server says about its requests, one after the other.
	Tell func(*Conn, Notice)
}

// Codes of our own answers to a server.
const (
	refusedAsk = `{"code":-32000,"message":"too many requests of this server are open"}`
	failedAsk  = `{"code":-32603,"message":"the answer has no JSON form"}`
)

// asking is the side of a connection that answers its server.
type asking struct {
	Asks
	told chan Notice

	mu      sync.Mutex
	open    map[string]context.CancelFunc // by the id of the server, as sent
	quiet   time.Time                     // from then on it may ask as often in a row as ever
	refused map[refused]bool              // what was told of
}

// refused is what a server asked, and may not: at all, or so often.
type refused struct {
	method string
	often  bool
}

// mayLocked reports whether a server may ask once more now.
func (a *asking) mayLocked(now time.Time) bool {
	if a.quiet.Before(now) {
		a.quiet = now
	}
	perMinute := cmp.Or(a.Quota.PerMinute, asksPerMinute)
	every := time.Minute / time.Duration(perMinute)
	if len(a.open) >= cmp.Or(a.Quota.Open, maxAsks) || a.quiet.Sub(now) > time.Duration(min(askBurst, perMinute)-1)*every {
		return false
	}
	a.quiet = a.quiet.Add(every)
	return true
}

// refuse tells of the first request of a method that the server may not make, and of
// the first that is too many: with each a server could fill the log.
func (c *Conn) refuse(method string, often bool) {
	r := refused{method, often}
	if c.onRefused == nil {
		return
	}
	c.asks.mu.Lock()
	told := c.asks.refused[r]
	if c.asks.refused == nil {
		c.asks.refused = make(map[refused]bool)
	}
	c.asks.refused[r] = true
	c.asks.mu.Unlock()
	if !told {
		c.wg.Go(func() { c.onRefused(c, method, often) })
	}
}

// capabilities are the offers as the SDK has them.
func (a Asks) capabilities() *mcp.ClientCapabilities {
	c := &mcp.ClientCapabilities{}
	for _, o := range slices.Sorted(slices.Values(a.Offers)) { // what holds another comes before it
		switch o {
		case connection.OfferSampling:
			c.Sampling = &mcp.SamplingCapabilities{}
		case connection.OfferSamplingContext:
			c.Sampling.Context = &mcp.SamplingContextCapabilities{}
		case connection.OfferSamplingTools:
			c.Sampling.Tools = &mcp.SamplingToolsCapabilities{}
		case connection.OfferElicitation:
			c.Elicitation = &mcp.ElicitationCapabilities{}
		case connection.OfferElicitationForm:
			c.Elicitation.Form = &mcp.FormElicitationCapabilities{}
		case connection.OfferElicitationURL:
			c.Elicitation.URL = &mcp.URLElicitationCapabilities{}
		case connection.OfferRoots:
			c.RootsV2 = &mcp.RootCapabilities{}
		case connection.OfferRootsChanged:
			c.RootsV2.ListChanged = true
		}
	}
	return c
}

// ask takes a request of the server that was offered; false is one that was not.
func (c *Conn) ask(f frame.Frame) bool {
	offer, _ := connection.OfferOf(f.Method, "")
	if offer == "" {
		return false
	}
	if c.asks.Answer == nil || !slices.Contains(c.asks.Offers, offer) {
		c.refuse(f.Method, false)
		return false
	}
	id := string(f.ID)
	ctx, cancel := context.WithCancel(context.Background())
	c.asks.mu.Lock()
	if c.asks.open[id] != nil || len(c.asks.open) >= maxOpen {
		c.asks.mu.Unlock()
		cancel()
		c.overflow.Add(1)
		return true
	}
	may := c.asks.mayLocked(time.Now())
	c.asks.open[id] = cancel
	c.asks.mu.Unlock()
	if !may {
		c.refuse(f.Method, true)
	}
	c.wg.Go(func() {
		reply := Reply{Error: []byte(refusedAsk)}
		if may {
			reply = c.asks.Answer(ctx, c, Ask{Method: f.Method, Params: f.Params})
		}
		if ctx.Err() == nil { // else nobody waits for it
			_, _ = c.transport.Write(ctx, response(f.ID, reply))
		}
		cancel()
		c.asks.mu.Lock()
		defer c.asks.mu.Unlock()
		delete(c.asks.open, id)
	})
	return true
}

// end ends all of them: nobody can be answered any more.
func (a *asking) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cancel := range a.open {
		cancel()
	}
}

// takenBack ends the request of the server that it says it does not want any more.
// It has its place until its end, so that a server gains none by that.
func (c *Conn) takenBack(f frame.Frame) {
	id, _, err := findOnce(f.Params, "requestId")
	if err != nil {
		return
	}
	c.asks.mu.Lock()
	defer c.asks.mu.Unlock()
	if cancel := c.asks.open[string(id)]; cancel != nil {
		cancel()
	}
}

// heard queues what the server says about its requests for input.
func (c *Conn) heard(f frame.Frame) {
	if !slices.Contains(c.asks.Offers, connection.OfferElicitation) {
		return
	}
	select {
	case c.asks.told <- Notice{f.Method, f.Params}:
	default:
		c.overflow.Add(1)
	}
}

// listenTo gives what was heard to who wants it.
func (c *Conn) listenTo() {
	for {
		select {
		case n := <-c.asks.told:
			c.asks.Tell(c, n)
		case <-c.done:
			return
		}
	}
}

// Tell sends a notification without params to a server of the handshake era.
func (c *Conn) Tell(ctx context.Context, method string) error {
	if c.own != nil {
		return nil
	}
	quoted, err := jsontext.AppendQuote(nil, method)
	if err == nil {
		_, err = c.transport.Write(ctx, append(append([]byte(`{"jsonrpc":"2.0","method":`), quoted...), '}'))
	}
	return err
}

// response builds the frame of an answer under the id that the server chose.
func response(id jsontext.Value, r Reply) []byte {
	member, body := `,"result":`, r.Result
	if r.Error != nil {
		member, body = `,"error":`, r.Error
	}
	if body == nil {
		member, body = `,"error":`, []byte(failedAsk)
	}
	out := make([]byte, 0, len(id)+len(body)+40)
	out = append(append(append(out, `{"jsonrpc":"2.0","id":`...), id...), member...)
	return append(appendLine(out, body), '}')
}

// appendLine appends JSON without line ends: a bare one is white space between
// tokens.
func appendLine(to, value []byte) []byte {
	start := len(to)
	to = append(to, value...)
	for i, b := range to[start:] {
		if b == '\n' || b == '\r' {
			to[start+i] = ' '
		}
	}
	return to
}
