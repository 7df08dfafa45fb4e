package canon_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatebus/gatebus/projections/internal/canon"
)

type leaf struct {
	Text string
	At   time.Time
	n    uint8
}

type tree struct {
	Leaves map[string]leaf
	ByLeaf map[struct{ A, B string }][]int
	Next   *tree
	Yes    bool
}

func TestSumDoesNotDependOnTheWayToTheContent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.String(), rapid.ID[string]).Draw(rt, "keys")
		a, b := map[string]leaf{}, map[string]leaf{"gone": {}}
		for _, k := range keys {
			a[k] = leaf{Text: k}
		}
		for _, k := range rapid.Permutation(keys).Draw(rt, "order") {
			b[k] = leaf{Text: k}
		}
		if a["gone"] == (leaf{}) {
			delete(b, "gone")
		}
		if canon.Sum(tree{Leaves: a}) != canon.Sum(tree{Leaves: b}) {
			rt.Error("the same maps have two sums")
		}
	})
	at := time.Unix(1, 2)
	if canon.Sum(at) != canon.Sum(at.UTC()) || canon.Sum(at) != canon.Sum(at.In(time.FixedZone("x", 60))) {
		t.Error("a moment has a sum for each zone")
	}
	if canon.Sum([]string(nil)) != canon.Sum([]string{}) || canon.Sum(map[string]int(nil)) != canon.Sum(map[string]int{}) {
		t.Error("nil is not empty")
	}
}

func TestSumTellsContentsApart(t *testing.T) {
	t.Parallel()
	key := struct{ A, B string }{"a", "b"}
	seen := map[[32]byte]int{}
	for i, v := range []tree{
		{}, {Yes: true}, {Next: &tree{}}, {Next: &tree{Yes: true}},
		{Leaves: map[string]leaf{"": {}}}, {Leaves: map[string]leaf{"a": {}}}, {Leaves: map[string]leaf{"": {Text: "a"}}},
		{Leaves: map[string]leaf{"": {n: 1}}}, {Leaves: map[string]leaf{"": {At: time.Unix(0, 1)}}},
		{ByLeaf: map[struct{ A, B string }][]int{key: {}}}, {ByLeaf: map[struct{ A, B string }][]int{key: {0}}},
		{ByLeaf: map[struct{ A, B string }][]int{key: {0, 0}}}, {ByLeaf: map[struct{ A, B string }][]int{{"ab", ""}: {}}},
	} {
		sum := canon.Sum(v)
		if j, ok := seen[sum]; ok {
			t.Errorf("values %d and %d have one sum", i, j)
		}
		seen[sum] = i
	}
}

func TestSumRefusesWhatHasNoCanonicalForm(t *testing.T) {
	t.Parallel()
	for _, v := range []any{func() {}, make(chan int), 1.5, struct{ at time.Time }{}, []any{1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T has a sum", v)
				}
			}()
			canon.Sum(v)
		}()
	}
}
