package main

import "fmt"

// goal is what a figure should be, and what it must hold.
type goal struct{ target, hold float64 }

// cell is what is the same for all ways that are compared.
type cell struct {
	era           era
	size, callers int
}

func (c cell) String() string { return fmt.Sprintf("%s, %d B, %d callers", c.era, c.size, c.callers) }

// ratios are the goals of calls per second, as ratios to direct calls.
var ratios = map[string]map[cell]goal{
	"stdio": {
		{handshake, 100, 1}: {0.80, 0.70}, {handshake, 100, 16}: {1.00, 0.85},
		{handshake, 10 << 10, 1}: {0.80, 0.70}, {handshake, 10 << 10, 16}: {0.90, 0.80},
		{stateless, 100, 1}: {1.00, 0.85}, {stateless, 100, 16}: {1.50, 1.30},
		{stateless, 10 << 10, 1}: {1.10, 0.90}, {stateless, 10 << 10, 16}: {1.40, 1.20},
	},
	"http": {
		{handshake, 100, 1}: {0.70, 0.60}, {handshake, 100, 16}: {0.75, 0.68},
		{handshake, 10 << 10, 1}: {0.78, 0.62}, {handshake, 10 << 10, 16}: {0.85, 0.72},
		{stateless, 100, 1}: {0.78, 0.65}, {stateless, 100, 16}: {0.90, 0.80},
		{stateless, 10 << 10, 1}: {0.85, 0.68}, {stateless, 10 << 10, 16}: {0.95, 0.82},
	},
}

// ratio is the goal of a way through Gatebus; the yardsticks have none.
func (c cell) ratio(k kind) (goal, bool) {
	if !k.gatebus {
		return goal{}, false
	}
	g, ok := ratios[k.behind][c]
	return g, ok
}

// cpu is the goal of the time that our process may use for a call, in microseconds.
func (c cell) cpu(k kind) (goal, bool) {
	return goal{180, 180}, k == kind{true, "stdio"} && c == cell{handshake, 100, 16}
}

// least judges a figure that must not be smaller, most one that must not be larger.
func (r *run) least(what string, got float64, g goal) {
	r.verdict(what, got, g, got >= g.target, got >= g.hold)
}

func (r *run) most(what string, got float64, g goal) {
	r.verdict(what, got, g, got <= g.target, got <= g.hold)
}

func (r *run) verdict(what string, got float64, g goal, target, hold bool) {
	said := "ok"
	switch {
	case !hold:
		said = "MISS"
		r.missed = append(r.missed, fmt.Sprintf("%s: %.2f, hold %.2f", what, got, g.hold))
	case !target:
		said = "holds"
	}
	fmt.Printf("  target %g, hold %g: %s", g.target, g.hold, said)
}
