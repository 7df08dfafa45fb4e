package live

import (
	"context"
	"errors"
	"iter"
	"maps"
	"sync"
)

// Key names one opening of a connection: its id, and the generation that is
// minted per opening (decision 20).
type Key struct {
	Connection string
	Generation uint32
}

// Pool holds the live connections of a runtime. The zero Pool is empty and
// ready; its methods are safe for concurrent use. It closes nothing but in
// Close.
type Pool struct {
	// Hold is called for each connection before it is put in, and release when it
	// is taken out; nil does nothing. Set it before the first Put.
	Hold func(Key) (release func(), err error)

	mu     sync.Mutex
	conns  map[Key]held
	closed bool
}

// held is a connection that is in the pool.
type held struct {
	*Conn
	release func()
}

// Put adds c. It reports false, and does not take c, when the pool is closed
// or has that generation already, or when Hold fails.
func (p *Pool) Put(key Key, c *Conn) bool {
	h := held{c, func() {}}
	if p.Hold != nil {
		release, err := p.Hold(key)
		if err != nil {
			return false
		}
		h.release = release
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.conns[key].Conn != nil {
		h.release()
		return false
	}
	if p.conns == nil {
		p.conns = make(map[Key]held)
	}
	p.conns[key] = h
	return true
}

// Get returns the connection of key, nil when there is none, also when only
// another generation is there.
func (p *Pool) Get(key Key) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[key].Conn
}

// Remove takes the connection of key out and returns it, nil when there is
// none.
func (p *Pool) Remove(key Key) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.conns[key]
	delete(p.conns, key)
	if h.Conn != nil {
		h.release()
	}
	return h.Conn
}

// All yields the connections that are there at the call, in no order.
func (p *Pool) All() iter.Seq2[Key, *Conn] {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := make(map[Key]*Conn, len(p.conns))
	for key, h := range p.conns {
		conns[key] = h.Conn
	}
	return maps.All(conns)
}

// Close takes all connections out and closes them at the same time; it takes
// no new ones from then on.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	p.mu.Unlock()
	errs := make(chan error, len(conns))
	for _, h := range conns {
		h.release()
		go func() { errs <- h.Close(ctx) }()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-errs)
	}
	return err
}
