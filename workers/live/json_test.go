package live

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Members are told apart in linear time: a frame of 16 MiB has room for a million of
// them, and the read loop looks into it.
func TestManyMembersTakeNoLonger(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 500_000 {
		fmt.Fprintf(&b, `"%d":0,`, i)
	}
	begun := time.Now()
	v, at, err := findOnce([]byte(`{`+b.String()+`"progressToken":7}`), "progressToken")
	if err != nil || string(v) != "7" || at != len(b.String())+len(`{"progressToken":`) {
		t.Errorf("%s at %d, %v", v, at, err)
	}
	for _, twice := range []string{"7", "499999", `\u0037`} {
		if _, _, err := findOnce([]byte(`{`+b.String()+`"`+twice+`":1}`), "progressToken"); err == nil {
			t.Errorf("%s is there twice", twice)
		}
	}
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("it took %s", d)
	}
}

// One that is there twice is refused, among few and at the border to many.
func TestAMemberThatIsThereTwiceIsNone(t *testing.T) {
	t.Parallel()
	for n := range 2*few + 2 {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"m%d":%d`, i, i)
		}
		whole := `{` + strings.Join(list, ",") + `}`
		for i := range n {
			name := fmt.Sprintf("m%d", i)
			if v, _, err := findOnce([]byte(whole), name); err != nil || string(v) != fmt.Sprint(i) {
				t.Fatalf("%s of %s: %s, %v", name, whole, v, err)
			}
			twice := `{` + strings.Join(append(list[:n:n], `"\u006d`+name[1:]+`":0`), ",") + `}`
			if _, _, err := findOnce([]byte(twice), "x"); err == nil {
				t.Fatalf("%s is taken", twice)
			}
		}
	}
}
