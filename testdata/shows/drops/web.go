package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// web is a server over streamable HTTP, always at the same address. A call with do
//
//	hold      waits to be cancelled
//	cut       is cut off before the first byte of the answer
//	cut-head  behind the headers
//	cut-half  in the middle of an event
//	resume    behind an event with an id, and its answer follows on a GET
//	slow      gets its headers late
//	tell      says that the tools changed before the answer
//	tell-die  says so in place of the answer, and the server is killed
type web struct {
	core
	addr string

	mu       sync.Mutex
	server   *http.Server
	sessions map[string]bool
	unknown  string // how a session that is not known is answered
	streams  map[chan string]string
	cutting  chan struct{}     // closed when the streams of notices are cut
	hung     chan struct{}     // closed when it goes on; nil: it does not hang
	left     map[string]string // answers that were cut off, by event id
	noted    []string
	tools    int
}

func newWeb(stateless bool) (*web, error) {
	w := &web{sessions: map[string]bool{}, unknown: "404", streams: map[chan string]string{}, cutting: make(chan struct{}), left: map[string]string{}}
	w.stateless = stateless
	w.note = func(line string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.noted = append(w.noted, line)
	}
	w.core.grown = func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.tools
	}
	w.addr = "127.0.0.1:0"
	return w, w.start()
}

func (w *web) declaration() string {
	return fmt.Sprintf("transport: streamable_http\nurl: http://%s/mcp\n", w.addr)
}

func (w *web) notes() ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.noted), nil
}

func (w *web) grow(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tools = n
	return nil
}

// start starts the server, which knows no session.
func (w *web) start() error {
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr = l.Addr().String()
	clear(w.sessions)
	w.server = &http.Server{Handler: w}
	go w.server.Serve(l)
	return nil
}

// kill closes everything at once, as the death of a process does.
func (w *web) kill() {
	w.mu.Lock()
	s := w.server
	w.mu.Unlock()
	s.Close()
}

// expire forgets the sessions, and says how the next requests of them are
// answered.
func (w *web) expire(shape string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unknown = shape
	clear(w.sessions)
}

// hang lets no request begin until it goes on.
func (w *web) hang() (goOn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hung := make(chan struct{})
	w.hung = hung
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hung = nil
		close(hung)
	}
}

// cutStreams cuts the streams of notices off, and nothing else.
func (w *web) cutStreams() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.cutting)
	w.cutting = make(chan struct{})
}

// tell sends a notice to all who listen.
func (w *web) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, params := range w.streams {
		select {
		case s <- fmt.Sprintf(`{"jsonrpc":"2.0","method":%q%s}`, notice, params):
		default:
		}
	}
}

func (w *web) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	hung := w.hung
	w.mu.Unlock()
	if hung != nil {
		<-hung
	}
	switch r.Method {
	case http.MethodGet:
		w.get(out, r)
	case http.MethodPost:
		w.post(out, r)
	case http.MethodDelete:
		w.mu.Lock()
		delete(w.sessions, r.Header.Get("Mcp-Session-Id"))
		w.mu.Unlock()
	default:
		out.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// known reports whether the request may go on; else it is answered.
func (w *web) known(out http.ResponseWriter, r *http.Request, m message) bool {
	id := r.Header.Get("Mcp-Session-Id")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stateless || m.Method == "initialize" || w.sessions[id] {
		return true
	}
	switch {
	case id == "" || w.unknown == "400":
		out.WriteHeader(http.StatusBadRequest)
	case w.unknown == "404":
		out.WriteHeader(http.StatusNotFound)
	default:
		reply(out, m, `"error":{"code":-32600,"message":"Session not found"}`)
	}
	return false
}

func reply(out http.ResponseWriter, m message, body string) {
	out.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, body)
}

// events begins a stream.
func events(out http.ResponseWriter) (send func(string)) {
	out.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(out)
	_ = flush.Flush() // who is gone needs nothing
	return func(text string) {
		fmt.Fprint(out, text)
		_ = flush.Flush()
	}
}

func (w *web) post(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m message
	if err != nil || json.Unmarshal(body, &m) != nil {
		out.WriteHeader(http.StatusBadRequest)
		return
	}
	if !w.known(out, r, m) {
		return
	}
	switch {
	case m.Method == "initialize" && !w.stateless:
		id := rand.Text()
		w.mu.Lock()
		w.sessions[id] = true
		w.mu.Unlock()
		out.Header().Set("Mcp-Session-Id", id)
		reply(out, m, w.answer(m))
	case m.Method == "notifications/cancelled":
		w.cancel(r.Header.Get("Mcp-Session-Id") + string(m.Params.RequestID))
		out.WriteHeader(http.StatusAccepted)
	case m.Method == "subscriptions/listen" && w.stateless:
		about := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/subscriptionId":%s}`, m.ID)
		w.listen(out, r, `,"params":{`+about+`}`,
			fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{%s,"notifications":{"toolsListChanged":true}}}`, about))
	case m.Method == "tools/call":
		w.called(out, r, m)
	case m.ID == nil:
		out.WriteHeader(http.StatusAccepted)
	default:
		reply(out, m, w.answer(m))
	}
}

// called answers a call, or as much of it as is to be.
func (w *web) called(out http.ResponseWriter, r *http.Request, m message) {
	do := m.Params.Arguments.Do
	key := r.Header.Get("Mcp-Session-Id") + string(m.ID)
	if do == "hold" && w.stateless {
		// There the end of the stream is the cancelling.
		key = rand.Text()
		defer context.AfterFunc(r.Context(), func() { w.cancel(key) })()
	}
	if strings.HasPrefix(do, "tell") {
		w.note(m.Params.Arguments.ID)
		w.tell()
		if do == "tell-die" {
			go w.kill()
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		reply(out, m, `"result":{`+w.kind()+`"content":[{"type":"text","text":"y"}]}`)
		return
	}
	answer := w.core.call(m, key)()
	whole := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer)
	switch do {
	case "cut":
		panic(http.ErrAbortHandler)
	case "cut-head":
		events(out)
		panic(http.ErrAbortHandler)
	case "cut-half":
		events(out)("event: message\ndata: " + whole[:len(whole)/2])
		panic(http.ErrAbortHandler)
	case "resume":
		id := rand.Text()
		w.mu.Lock()
		w.left[id] = whole
		w.mu.Unlock()
		events(out)("id: " + id + "\nretry: 20\ndata: \n\n")
		panic(http.ErrAbortHandler)
	case "slow":
		time.Sleep(500 * time.Millisecond)
	}
	reply(out, m, answer)
}

// get is a stream of notices, or the rest of an answer that was cut off.
func (w *web) get(out http.ResponseWriter, r *http.Request) {
	if w.stateless {
		out.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if !w.known(out, r, message{ID: json.RawMessage("null")}) {
		return
	}
	w.mu.Lock()
	rest, ok := w.left[r.Header.Get("Last-Event-ID")]
	w.mu.Unlock()
	if ok {
		events(out)("data: " + rest + "\n\n")
		return
	}
	w.listen(out, r, "", "")
}

// listen sends notices until the other side leaves.
func (w *web) listen(out http.ResponseWriter, r *http.Request, params, first string) {
	send := events(out)
	if first != "" {
		send("data: " + first + "\n\n")
	}
	s := make(chan string, 16)
	w.mu.Lock()
	w.streams[s] = params
	cutting := w.cutting
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.streams, s)
		w.mu.Unlock()
	}()
	for {
		select {
		case m := <-s:
			send("data: " + m + "\n\n")
		case <-cutting:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
}
