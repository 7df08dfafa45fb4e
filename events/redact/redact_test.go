package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func secret(name, value string) Secret { return Secret{name, "mcp.env:" + name, NewRaw(value)} }

func mustRedactor(t testing.TB, secrets ...Secret) *Redactor {
	t.Helper()
	r, err := NewRedactor(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRawPrintsAndEncodesNothing(t *testing.T) {
	t.Parallel()
	const s = "hunter2-hunter2"
	type inner struct {
		hidden Raw[string]
		Shown  Raw[string]
	}
	raw := NewRaw(s)
	values := []any{raw, &raw, inner{raw, raw}, &inner{raw, raw}, []Raw[string]{raw}, map[string]Raw[string]{"k": raw}, NewRaw(errors.New(s)), NewRaw([]byte(s))}
	var log strings.Builder
	text, js := slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.NewJSONHandler(&log, nil))
	for _, v := range values {
		for _, verb := range strings.Fields("%v %+v %#v %s %q %x %X %d %t %e %U %T %p") {
			log.WriteString(fmt.Sprintf(verb, v))
		}
		text.Info("x", "v", v)
		js.Info("x", "v", v)
	}
	for _, form := range []string{s, fmt.Sprintf("%x", s), fmt.Sprintf("%X", s), base64.StdEncoding.EncodeToString([]byte(s))} {
		if strings.Contains(log.String(), form) {
			t.Errorf("a raw value prints as %s", form)
		}
	}
	if got := fmt.Sprintf("%v %s %q %x %#v", raw, raw, raw, raw, raw); got != "<raw> <raw> <raw> <raw> <raw>" {
		t.Errorf("a raw value prints as %s", got)
	}
	if raw.String() != "<raw>" || raw.GoString() != "<raw>" || raw.LogValue().String() != "<raw>" {
		t.Error("a raw value prints itself")
	}
	if _, err := json.Marshal(map[string]any{"v": raw}); err == nil {
		t.Error("a raw value encodes as JSON")
	}
	if _, err := json.Marshal(map[Raw[string]]int{raw: 1}); err == nil {
		t.Error("a raw value encodes as text")
	}
	if raw.Reveal() != s || (Raw[string]{}).Reveal() != "" {
		t.Error("Reveal does not return the value")
	}
}

// R119: the forms of the five views.
func TestViewsOfText(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	got := strings5(r.Text(NewRaw("key sekret-value-1.")))
	fp := fingerprint("sekret-value-1")
	want := texts{"key <redacted>.", "key <redacted:API_KEY>.", "key <redacted:API_KEY>.", "key <redacted:API_KEY>.", "key <redacted:API_KEY:" + fp + ">."}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(fp) != 16 {
		t.Errorf("the fingerprint has %d digits", len(fp))
	}
}

// R119: the forms of the five views of structured values.
func TestViewsOfJSON(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"), secret("PIN", "84729931"))
	src := `{ "a" : "sekret-value-1", "say sekret-value-1":"x sekret-value-1 y",` + "\n" + `"password": 1234, "n":1.0e2, "pin":84729931, "big":12345678901234567890, "e":"\u00e9\/" }`
	got := strings5(r.JSON(NewRaw([]byte(src))))
	stored := `{ "a" : {"redacted":true,"name":"API_KEY","source":"mcp.env:API_KEY"}, "say <redacted:API_KEY>":"x <redacted:API_KEY> y",` + "\n" +
		`"password": {"redacted":true,"name":"password","source":"field"}, "n":1.0e2, "pin":{"redacted":true,"name":"PIN","source":"mcp.env:PIN"}, "big":12345678901234567890, "e":"\u00e9\/" }`
	debugged := strings.NewReplacer(
		`"source":"mcp.env:API_KEY"`, `"source":"mcp.env:API_KEY","fingerprint":"`+fingerprint("sekret-value-1")+`"`,
		`<redacted:API_KEY>`, `<redacted:API_KEY:`+fingerprint("sekret-value-1")+`>`,
		`"source":"field"`, `"source":"field","fingerprint":"`+fingerprint("1234")+`"`,
		`"source":"mcp.env:PIN"`, `"source":"mcp.env:PIN","fingerprint":"`+fingerprint("84729931")+`"`,
	).Replace(stored)
	want := texts{
		`{ "a" : "<redacted>", "say <redacted>":"x <redacted> y",` + "\n" + `"password": "<redacted>", "n":1.0e2, "pin":"<redacted>", "big":12345678901234567890, "e":"\u00e9\/" }`,
		`{ "a" : "<redacted:API_KEY>", "say <redacted:API_KEY>":"x <redacted:API_KEY> y",` + "\n" + `"password": "<redacted:password>", "n":1.0e2, "pin":"<redacted:PIN>", "big":12345678901234567890, "e":"\u00e9\/" }`,
		stored, stored, debugged,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestJSONWithoutSecretsIsByteForByteTheOriginal(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	for _, src := range []string{
		`{}`, ` [ 1 , 2.50 , -0 , 1e400, true,null ] `, `"\ud83d"`, `"\u003c\/\u0041%20&amp;"`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}",
		`{"type":"object","properties":{"token":{"type":"string"},"api_key":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["token","user"]}`,
		`{"next_page_token":"CAoQAA","token_count":12,"author":"ana","password":null,"secret":true,"token":""}`,
		`{"s":"{\"a\": [1, 2.0]}"}`,
	} {
		if got := r.JSON(NewRaw([]byte(src))); got.Failed || got.Model.String() != src {
			t.Errorf("%s became %s", src, got.Model)
		}
	}
}

// R122: all five views or none.
func TestFailureIsTheMarkerInEveryView(t *testing.T) {
	t.Parallel()
	broken := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	broken.layers = append(broken.layers, nil)
	sound := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	for name, c := range map[string]struct {
		views Views
		want  string
	}{
		"text panics":       {broken.Text(NewRaw("sekret-value-1")), redactionFailed},
		"JSON panics":       {broken.JSON(NewRaw([]byte(`"sekret-value-1"`))), failedJSON},
		"no redactor":       {(*Redactor)(nil).Text(NewRaw("x")), redactionFailed},
		"no JSON":           {sound.JSON(NewRaw([]byte(`{"a":`))), failedJSON},
		"empty":             {sound.JSON(NewRaw([]byte(nil))), failedJSON},
		"two JSON values":   {sound.JSON(NewRaw([]byte(`1 2`))), failedJSON},
		"too deep":          {sound.JSON(NewRaw([]byte(strings.Repeat("[", 300) + strings.Repeat("]", 300)))), failedJSON},
		"the error panics":  {sound.Error("call", NewRaw[error](panicking{})), redactionFailed},
		"there is no error": {sound.Error("call", Raw[error]{}), redactionFailed},
	} {
		if !c.views.Failed {
			t.Errorf("%s: does not fail", name)
		}
		if diff := cmp.Diff(same(c.want), strings5(c.views)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

type panicking struct{}

func (panicking) Error() string { panic("sekret-value-1") }

// R123: type and message, one line, 500 characters, redacted before the cut.
func TestErrorText(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	got := r.Error("dial", NewRaw(fmt.Errorf("bad\n\tkey sekret-value-1\x1b[0m: %w", &url.Error{Op: "Get", URL: "u", Err: errors.New("no")})))
	if want := `dial: *fmt.wrapError: bad key <redacted>\u001b[0m: Get "u": no`; got.Model.String() != want {
		t.Errorf("got  %s\nwant %s", got.Model, want)
	}
	long := r.Error("", NewRaw(errors.New(strings.Repeat("é", 470)+" sekret-value-1 "+strings.Repeat("é", 100))))
	for _, s := range strings5(long) {
		if strings.Contains(s, "sekret") || utf8.RuneCountInString(s) > maxError {
			t.Errorf("%d characters: %s", utf8.RuneCountInString(s), s)
		}
	}
}

func TestStoredSecretsStayInWhatTheModelAndTheOperatorSee(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("line of a document, number ", 40) + "END"
	args := NewRaw([]byte(`{"path":"/srv/data.txt","text":` + quote(long) + `,"n":123456,"deep":[{"q":"select 1"}],"s":"abc"}`))
	_, values, err := ArgumentValues(args)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range values {
		names = append(names, v.Name)
	}
	if diff := cmp.Diff([]string{"argument:path", "argument:text", "argument:n", "argument:q"}, names); diff != "" {
		t.Error(diff)
	}
	r, err := mustRedactor(t, secret("API_KEY", "sekret-value-1")).WithStored(values...)
	if err != nil {
		t.Fatal(err)
	}
	echoed := "wrote /srv/data.txt with sekret-value-1: " + long[100:400] + " 123456 abc"
	got := strings5(r.Text(NewRaw(echoed)))
	want := strings.ReplaceAll(echoed, "sekret-value-1", "<redacted>")
	if got[model] != want {
		t.Errorf("model view: %s", got[model])
	}
	if got[event] != "wrote <redacted:argument:path> with <redacted:API_KEY>: <redacted:argument:text> <redacted:argument:n> abc" || got[durable] != got[event] {
		t.Errorf("event view: %s", got[event])
	}
	js := strings5(r.JSON(NewRaw([]byte(`{"echo":"/srv/data.txt","n":123456,"password":"pw123456"}`))))
	if js[model] != `{"echo":"/srv/data.txt","n":123456,"password":"<redacted>"}` {
		t.Errorf("model view: %s", js[model])
	}
	if strings.Contains(js[event], "data.txt") || strings.Contains(js[event], "123456") || !strings.Contains(js[event], `"name":"argument:path","source":"argument"`) {
		t.Errorf("event view: %s", js[event])
	}
}

// A server that encodes what it was given does not bring it into the log (R118).
func TestEncodedArgumentsStayOutOfTheLog_R118(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"/srv/data.txt", `in "quotes"`, strings.Repeat("a document, number 7; ", 30)} {
		r, err := mustRedactor(t).WithStored(Secret{"argument:path", "argument", NewRaw(value)})
		if err != nil {
			t.Fatal(err)
		}
		for _, inside := range []string{"", "x", "xy", "xyz"} {
			whole, document := []byte(inside+value+inside), []byte(`{"a":`+quote(inside+value)+`}`)
			for _, form := range []string{
				base64.StdEncoding.EncodeToString(whole), base64.RawURLEncoding.EncodeToString(whole), hex.EncodeToString(whole),
				base64.StdEncoding.EncodeToString(document), hex.EncodeToString(document),
			} {
				v := r.Text(NewRaw(form))
				if !strings.Contains(v.Event.String(), "<redacted:argument:path>") || v.Model.String() != form {
					t.Errorf("%q became %q and, for the model, %q", form, v.Event, v.Model)
				}
			}
		}
	}
}

// Go and Python escape what is beyond 16 bits with eight digits.
func TestEightDigitEscapesAreDecoded_R120(t *testing.T) {
	t.Parallel()
	value := "k\U0001F40E1\u9A6C2\U0001F4383"
	secretValue, err := strconv.Unquote(`"` + value + `"`)
	if err != nil {
		t.Fatal(err)
	}
	r := mustRedactor(t, secret("API_KEY", secretValue))
	for _, text := range []string{value, strconv.Quote(value), `\U00110000 ` + value} {
		if got := r.Text(NewRaw(text)).Event.String(); !strings.Contains(got, "<redacted:API_KEY>") || strings.Contains(got, "F40E") {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// A secret that JSON escapes is found however the writer escaped it (R120).
func TestSecretsThatJSONEscapesAreFound_R120(t *testing.T) {
	t.Parallel()
	for value, written := range map[string][]string{
		`key"with"quotes`: {`key\"with\"quotes`, `key\u0022with\"quotes`},
		`schlüssel-漢字-🔑7`: {`schlüssel-漢字-🔑7`, `schl\u00fcssel-\u6f22\u5b57-\ud83d\udd117`, `schl\u00FCssel-漢字-\uD83D\uDD117`},
		"key/with/slash":  {`key/with/slash`, `key\/with\/slash`},
		"key\x01control1": {`key\u0001control1`},
		// As long as what it stands for: two escapes less, U+FFFD for a byte.
		"ab/cd/ef12\ufffd": {`ab\/cd\/ef12` + "\xff"},
	} {
		for _, stored := range []bool{false, true} {
			r, err := mustRedactor(t).with([]Secret{secret("API_KEY", value)}, stored)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range written {
				src := `{"text":"` + w + `"}`
				v := r.JSON(NewRaw([]byte(src)))
				if want := `{"text":{"redacted":true,"name":"API_KEY","source":"mcp.env:API_KEY"}}`; v.Event.String() != want {
					t.Errorf("%s became %s", src, v.Event)
				}
				if hidden := v.Model.String() == `{"text":"<redacted>"}`; hidden == stored {
					t.Errorf("%s became, for the model, %s", src, v.Model)
				}
			}
		}
	}
}

// A hit over all tokens does not hold those that are behind a token already.
func TestHitsThatTouchAToken(t *testing.T) {
	t.Parallel()
	hits := []span{{start: 0, end: 4000}}
	for i := range 1000 {
		hits = append(hits, span{start: 4*i + 1, end: 4*i + 3})
	}
	ahead := touching{hits: hits}
	for i := range 1000 {
		if got := ahead.next(4*i, 4*i+2); len(got) != 2 || got[0] != hits[0] || got[1] != hits[i+1] {
			t.Fatalf("token %d is touched by %v", i, got)
		}
		if left := len(ahead.hits) + len(ahead.over); left != 1001-i {
			t.Fatalf("behind token %d are %d hits, %d are looked at", i, 999-i, left)
		}
	}
	if got := ahead.next(4000, 4001); len(got) != 0 {
		t.Errorf("behind all hits there are %v", got)
	}
}

// Hashes that a hostile text has chosen do not come to stand in one row, which each
// look-up would walk along.
func TestBlocksWithChosenHashesAreSpread(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	e := newEcho(size)
	for i := range uint32(size / block) {
		*e.at(i&127 | i>>7<<24) = place{hash: i&127 | i>>7<<24, text: 1}
	}
	row, longest := 0, 0
	for i := range e.blocks {
		if row++; e.blocks[i].text == 0 {
			row = 0
		}
		longest = max(longest, row)
	}
	if longest > 256 {
		t.Errorf("%d blocks stand in a row", longest)
	}
}

// Whatever part of a long argument comes back, the log does not get it.
func TestAnyLargePartOfALongValueIsFound(t *testing.T) {
	t.Parallel()
	var long string
	for i := range 200 {
		long += fmt.Sprintf("line %d of a document: %s;", i, fingerprint(fmt.Sprint(i)))
	}
	r, err := mustRedactor(t).WithStored(Secret{"argument:text", "argument", NewRaw(long)})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, len(long)-2*block).Draw(t, "from")
		to := rapid.IntRange(from+2*block-1, len(long)).Draw(t, "to")
		got := r.Text(NewRaw("[" + long[from:to] + "]")).Event.String()
		if got != "[<redacted:argument:text>]" {
			t.Fatalf("%q", got)
		}
	})
}

func TestNewRedactorRefusesWhatItCannotName(t *testing.T) {
	t.Parallel()
	if _, err := NewRedactor(Secret{"", "x", NewRaw("sekret-value-1")}); err == nil || strings.Contains(err.Error(), "sekret") {
		t.Errorf("got %v", err)
	}
}

func TestMarkersDoNotPrintSecrets(t *testing.T) {
	t.Parallel()
	base := mustRedactor(t, secret("hunter2-hunter2", "sekret-value-1"))
	r, err := base.With(secret("B", "hunter2-hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range strings5(r.Text(NewRaw("x sekret-value-1 hunter2-hunter2"))) {
		if strings.Contains(s, "hunter2") {
			t.Error(s)
		}
	}
	for _, s := range strings5(r.JSON(NewRaw([]byte(`{"hunter2-hunter2_token":"v"}`)))) {
		if strings.Contains(s, "hunter2") {
			t.Error(s)
		}
	}
	if got := base.Text(NewRaw("sekret-value-1")).Operator.String(); got != "<redacted:hunter2-hunter2>" {
		t.Errorf("With changed the redactor it was called on: %s", got)
	}
}

// Large texts take turns, and one that fails gives its turn back.
func TestLargeTextsTakeTurns(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("clean text ", large/8)
	r, broken := mustRedactor(t, secret("API_KEY", "sekret-value-1")), mustRedactor(t)
	broken.layers = append(broken.layers, nil)
	var group sync.WaitGroup
	for range 4 * cap(slots) {
		group.Go(func() {
			if got := r.Text(NewRaw(text + "sekret-value-1")).Model.String(); got != text+"<redacted>" {
				t.Errorf("got %d bytes", len(got))
			}
			if got := broken.JSON(NewRaw([]byte(`["` + text + `"]`))); !got.Failed {
				t.Error("does not fail")
			}
		})
	}
	group.Wait()
}

func TestARedactorIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			with, err := r.With(secret("OWN", fmt.Sprint("own-secret-", i)))
			if err != nil {
				t.Error(err)
			}
			for range 50 {
				if got := with.Text(NewRaw(fmt.Sprint("sekret-value-1 own-secret-", i))).Model.String(); got != "<redacted> <redacted>" {
					t.Error(got)
				}
			}
		})
	}
	group.Wait()
}

func TestSecretsThatSpanTokensOrSpellEscapesDoNotStay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ value, src string }{
		{`"alpha":"beta-gamma"`, `{"alpha":"beta-gamma","k":1}`},
		{`a\nb-secret-value`, `{"x":"a\nb-secret-value"}`},
		{`a\nb-secret-value`, `{"x":"other-secret a\nb-secret-value"}`},
		{`19-55-77`, `{"x":"\u0031\u0039-55%2D77"}`},
		{`998877`, `[19988771]`},
		{`tab"quote\back`, `{"x":"{\"y\":\"tab\\\"quote\\\\back\"}"}`},
	} {
		r := mustRedactor(t, secret("S", c.value), secret("T", "other-secret"))
		for view, s := range strings5(r.JSON(NewRaw([]byte(c.src)))) {
			if strings.Contains(s, c.value) || strings.Contains(s, "secret-value") || strings.Contains(s, "77") || strings.Contains(s, "back") || strings.Contains(s, "beta") {
				if view != debug || !strings.Contains(s, "fingerprint") || strings.Contains(s, c.value) {
					t.Errorf("%s in %s: view %d is %s", c.value, c.src, view, s)
				}
			}
			if !json.Valid([]byte(s)) {
				t.Errorf("no JSON: %s", s)
			}
		}
	}
}

// R120: a short value is hidden where its own name says so.
func TestShortSecretsAreHiddenInTheirField(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("DEBUG", "1"), secret("MODE", "true"))
	got := r.JSON(NewRaw([]byte(`{"debug":1,"mode":"true","other":1,"text":"1 is true"}`))).Model.String()
	if want := `{"debug":"<redacted>","mode":"<redacted>","other":1,"text":"1 is true"}`; got != want {
		t.Errorf("got %s", got)
	}
}

func TestSensitiveName(t *testing.T) {
	t.Parallel()
	for _, name := range strings.Fields(`
		access_token api_key apikey auth authorization bearer client_secret cookie credential id_token key_material password passwd
		private_key proxy_authorization refresh_token secret secret_input secret_value signature token x_access_token x_api_key
		x_api_token x_auth_token x_goog_api_key X-API-Key GITHUB_TOKEN clientSecret APIKey accessToken
		AWS_SECRET_ACCESS_KEY my.private.key DB_PASSWORD Proxy-Authorization --token ｐａｓｓｗｏｒｄ`) {
		if !SensitiveName(name) {
			t.Errorf("%s is not sensitive", name)
		}
	}
	for _, name := range strings.Fields("token_count tokenCount max_tokens author public_key sort_key keyboard tokens next_page_token nextPageToken passenger") {
		if SensitiveName(name) {
			t.Errorf("%s is sensitive", name)
		}
	}
}

func TestArgumentSecretsAreTheSensitiveMembersAtAnyDepth(t *testing.T) {
	t.Parallel()
	found, err := ArgumentSecrets(NewRaw([]byte(`{"user":"bob","auth":{"pin":1234,"list":["a","b"]},"x":[{"api_key":"k"}],"env":[{"value":"v","name":"API_KEY"}],"secret":null}`)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range found {
		got = append(got, s.Name+"="+s.Value.Reveal()+" "+s.Source)
	}
	if diff := cmp.Diff([]string{"auth=1234 argument", "auth=a argument", "auth=b argument", "api_key=k argument", "API_KEY=v argument"}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := ArgumentSecrets(NewRaw([]byte(`{"secret":"hunter2`))); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// R68, R118: keys, sizes and kinds, and nothing else, may reach a disk.
func TestArguments(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	src := `{"text":"häh","n":1.50,"on":true,"none":null,"list":[1,"a",{"deep":{"deeper":{"x":1}}}],"key":"sekret-value-1"}`
	v, err := r.Arguments(NewRaw([]byte(src)), []byte("k"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"key", "list", "n", "none", "on", "text"}, v.Keys); diff != "" {
		t.Error(diff)
	}
	wantEvent := `{"text":"<string length:3>","n":"<number>","on":true,"none":null,"list":["<number>","<string length:1>",{"deep":{"deeper":"<object>"}}],"key":"<string length:18>"}`
	if v.Event.String() != wantEvent {
		t.Errorf("event view\n%s", v.Event)
	}
	wantOperator := `{"text":"häh","n":1.50,"on":true,"none":null,"list":[1,"a",{"deep":{"deeper":"<object>"}}],"key":"<redacted:API_KEY>"}`
	if v.Operator().String() != wantOperator {
		t.Errorf("operator view\n%s", v.Operator())
	}
	if v.Bytes != len(src) || len(v.Digest) != 64 {
		t.Errorf("bytes %d, digest %s", v.Bytes, v.Digest)
	}
	digest := func(src, key string) string {
		t.Helper()
		v, err := r.Arguments(NewRaw([]byte(src)), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return v.Digest
	}
	if digest(`{"a":1,"b":"x"}`, "k") != digest(` { "b" : "\u0078", "a" : 1 } `, "k") {
		t.Error("the digest depends on order, space or escapes")
	}
	if digest(`{"a":9007199254740993}`, "k") == digest(`{"a":9007199254740992}`, "k") {
		t.Error("the digest rounds numbers")
	}
	if digest(`{"a":1}`, "k") == digest(`{"a":1}`, "l") {
		t.Error("the digest does not depend on the key")
	}
	for _, bad := range []string{`[]`, `1`, ``, `{`, `{"a":1,"a":2}`, `{} {}`, "{\"a\":\"\xff\"}"} {
		if _, err := r.Arguments(NewRaw([]byte(bad)), nil); !errors.Is(err, ErrArguments) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// R68: a preview is bounded whatever the arguments are, and stays JSON.
func TestPreviewsOfArgumentsAreBounded(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t)
	many := `{` + strings.Repeat(`"`+strings.Repeat("k", 100)+`x":"`+strings.Repeat("v", 1000)+`",`, 1)
	for i := range 60 {
		many += fmt.Sprintf(`"key%d":[%s1],`, i, strings.Repeat(`"`+strings.Repeat("w", 300)+`",`, 40))
	}
	many += `"z":1}`
	for _, src := range []string{many, `{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, `{"a":[` + strings.Repeat("1,", 30) + `1]}`} {
		v, err := r.Arguments(NewRaw([]byte(src)), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{v.Event.String(), v.Operator().String()} {
			if utf8.RuneCountInString(s) > maxShapeText || !json.Valid([]byte(s)) {
				t.Errorf("%d characters: %.300s", utf8.RuneCountInString(s), s)
			}
			if !strings.Contains(s, "more>") && !strings.Contains(s, "<array>") && !strings.Contains(s, "<truncated>") {
				t.Errorf("nothing marks what is left out: %.300s", s)
			}
		}
	}
}

// R116, R117.
func TestResultType(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		`{"content":[]}`: Complete, `{"resultType":"complete"}`: Complete, `{"resultType":null}`: Complete, `{"content":[{"resultType":7}]}`: Complete,
		`{"resultType":"input_required"}`: "input_required", `{"resultType":7}`: "", `["resultType"]`: "", `{"resultType":"complete"`: "",
		// However the name is written, and once: readers take the first or the last one.
		`{"result\u0054ype":"input_required"}`: "input_required", `{"\u0072esultType":"task","x":"\u0041"}`: "task", `{"resultType":"in\u0070ut_required"}`: "input_required",
		`{"resultType":"complete","result\u0054ype":"input_required"}`: "", `{"resultType":"input_required","resultType":"complete"}`: "",
		`{"resultType":null,"resultType":null}`: "", `{"x":"\u0041"}`: Complete, `{"x":{"result\u0054ype":7},"s":"\u003c"}`: Complete, `{"resultType":"complete"} 1`: "",
	} {
		if got := ResultType(NewRaw([]byte(src))); got != want {
			t.Errorf("%s: type %q, want %q", src, got, want)
		}
	}
}

// What is only passed over is not marked at each of its levels: nothing of it is kept
// that could be.
func TestDeepResultIsPassedOverOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{`{"token":`, `[["token",0],`, `{"name":"token","value":`} {
		depth := maxResultDepth - 4
		closing := strings.Repeat(string(level[0]+2), depth)
		src := strings.Repeat(level, depth) + "[" + strings.Repeat(`1,"a",`, 5000) + "1]" + closing
		p := &parser{sensitive: map[string]bool{}}
		p.begin(src, maxResultDepth)
		if got, err := p.raw(); got != src || err != nil || !p.end() {
			t.Errorf("%s: %d bytes of %d, %v", level, len(got), len(src), err)
		}
		if cap(p.tokens) > 16 || len(p.sensitive) > 0 {
			t.Errorf("%s: %d tokens are kept, %d names looked at", level, cap(p.tokens), len(p.sensitive))
		}
		if c, err := Result("", NewRaw([]byte(`{"structuredContent":`+src+`}`))); err != nil || c.Text.Reveal() != src {
			t.Errorf("%s: %v", level, err)
		}
	}
}

func TestResult(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		src, text           string
		structured, isError bool
	}{
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb", false, false},
		{`{"content":[{"type":"text","text":"a"}],"structuredContent":{ "n": 1.0 },"isError":false}`, `{ "n": 1.0 }`, true, false},
		{`{"content":[{"type":"text","text":"no"}],"isError":true}`, "no", false, true},
		{`{"content":[{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"audio","data":"","mimeType":"audio/wav"}]}`, "[image image/png]\n[audio audio/wav]", false, false},
		{`{"content":[{"type":"resource_link","uri":"file:///a","title":"A"},{"type":"resource_link","uri":"file:///b"}]}`, "[A] file:///a\nfile:///b", false, false},
		{`{"content":[{"type":"resource","resource":{"uri":"u","text":"t"}},{"type":"resource","resource":{"uri":"u","blob":"AA=="}}]}`, "t\nu", false, false},
		{`{"content":[{"type":"image","data":"AA=="},{"type":"audio","data":"AA==","mimeType":null},{"type":"image","mimeType":7}]}`, "[image]\n[audio]\n[image]", false, false},
		{`{"content":[{"type":"text","text":"a","title":7,"resource":[]},{"type":"resource_link","uri":"u","title":{},"name":"n"}]}`, "a\nu", false, false},
		{`{"content":[{"type":"resource","resource":{"uri":"u","text":null,"blob":"AA=="}},{"type":"tool_use","id":"1","name":"n","input":{}}]}`, "u\n" + `{"type":"tool_use","id":"1","name":"n","input":{}}`, false, false},
		{`{"content":[{"type":"new","x":[1, 2]}]}`, `{"type":"new","x":[1, 2]}`, false, false},
		{`{"content":[]}`, `{"status":"ok"}`, true, false},
		{`{"isError":true,"structuredContent":null}`, `{"status":"error"}`, true, true},
	} {
		got, err := Result("", NewRaw([]byte(c.src)))
		if err != nil {
			t.Errorf("%s: %v", c.src, err)
			continue
		}
		if got.Text.Reveal() != c.text || got.Structured != c.structured || got.IsError != c.isError {
			t.Errorf("%s: %q, structured %v, error %v", c.src, got.Text.Reveal(), got.Structured, got.IsError)
		}
	}
	for _, bad := range []string{``, `[]`, `{"content":{}}`, `{"content":[1]}`, `{"content":[{"text":"x"}]}`, `{"content":[{"type":"text"}]}`,
		`{"content":[{"type":"resource"}]}`, `{"isError":"yes"}`, `{"content":[{"type":7}]}`, `{"content":[{"type":"text","text":7}]}`, `{"content":[{"type":"resource_link"}]}`,
		`{"content":[]} x`, `{"content":[]`} {
		if got, err := Result("", NewRaw([]byte(bad))); !errors.Is(err, ErrResult) {
			t.Errorf("%s: %v, %v", bad, got, err)
		}
	}
	r := mustRedactor(t, secret("API_KEY", "sekret-value-1"))
	structured, err := Result("", NewRaw([]byte(`{"structuredContent":{"password":"x1y2z3","k":"sekret-value-1"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := structured.Views(r).Operator.String(); got != `{"password":"<redacted:password>","k":"<redacted:API_KEY>"}` {
		t.Errorf("got %s", got)
	}
}

func TestNameEscapesAndBounds(t *testing.T) {
	t.Parallel()
	if got := Name("a\nb\x1b[0m\u202e\u2028é").String(); got != `a\u000ab\u001b[0m\u202e\u2028é` {
		t.Errorf("got %s", got)
	}
	if got := Name(strings.Repeat("é", 1000)).String(); utf8.RuneCountInString(got) > maxName {
		t.Errorf("%d characters", utf8.RuneCountInString(got))
	}
	if Static("a") == Static("b") || FromStored("x") != Static("x") {
		t.Error("views do not compare")
	}
	if data, err := json.Marshal(Static("a\"b")); err != nil || string(data) != `"a\"b"` {
		t.Errorf("%s, %v", data, err)
	}
	var event struct{ Text EventText }
	if err := json.Unmarshal([]byte(`{"Text":"x"}`), &event); err == nil {
		t.Error("a view can be decoded")
	}
}

// FuzzNoSecretSurvives: of a secret of six characters and more nothing stays
// in text or JSON, in any encoding it is written in, and what was redacted is
// redacted already.
func FuzzNoSecretSurvives(f *testing.F) {
	f.Add("sekret-value-1", "x ", " y", uint8(0))
	f.Add("pa\"ss\\w0rd/+ é", "%", "\\", uint8(3))
	f.Add("%41\\u0041&amp;x", "\\u00", "41", uint8(1))
	f.Add("%41\\u0041", "\\u00", "41", uint8(1))
	f.Add("aaaaaaaab", "aaaaaaaa", "b", uint8(5))
	f.Add("98765432", "-1", "9", uint8(2))
	encode := []func(string) string{
		func(s string) string { return s },
		encodings["json"], encodings["url"], url.QueryEscape, encodings["uni"], encodings["urlall"],
		encodings["b64"], encodings["b64url"], encodings["hex"], encodings["HEX"],
	}
	f.Fuzz(func(t *testing.T, value, before, after string, how uint8) {
		if len(value) > 200 || len(before)+len(after) > 4000 {
			return
		}
		value = strings.TrimSpace(value)
		// The markers themselves may complete a value with such characters.
		if utf8.RuneCountInString(value) < minText || plain(value) || strings.ContainsAny(value, "<>") || !utf8.ValidString(value) {
			return
		}
		written := value
		if i := int(how) % len(encode); i > 0 && utf8.RuneCountInString(value) >= minFolded {
			written = encode[i](value)
			// Next to an escape of the text it would not be that any more.
			before, after = before+" ", " "+after
		}
		r := mustRedactor(t, secret("S", value))
		text := before + written + after
		views := r.Text(NewRaw(text))
		if views.Failed {
			t.Fatal("failed")
		}
		for view, s := range strings5(views) {
			if view == debug && strings.Contains("<redacted:S:"+fingerprint(value)+">", value) {
				continue
			}
			if strings.Contains(s, value) || strings.Count(s, written) > 0 && len(written) >= len(value) {
				t.Errorf("view %d of %q shows %q: %q", view, text, value, s)
			}
			if again := strings5(r.Text(NewRaw(s)))[view]; again != s {
				t.Errorf("view %d is redacted again: %q, then %q", view, s, again)
			}
		}
		if utf8.RuneCountInString(value) >= minFolded {
			// All encodings beside each other.
			var all []string
			for _, e := range encode {
				all = append(all, e(value))
			}
			for view, s := range strings5(r.Text(NewRaw(before + " " + strings.Join(all, " ") + " " + after))) {
				for _, form := range all {
					if len(form) >= len(value) && strings.Contains(s, form) && (view != debug || !strings.Contains("<redacted:S:"+fingerprint(value)+">", form)) {
						t.Errorf("view %d shows %q, a form of %q: %q", view, form, value, s)
					}
				}
			}
		}
		src := `{"k":` + quote(strings.ToValidUTF8(text, "?")) + `,` + quote(strings.ToValidUTF8(text, "?")) + `:1}`
		views = r.JSON(NewRaw([]byte(src)))
		if views.Failed {
			t.Fatalf("failed: %s", src)
		}
		for view, s := range strings5(views) {
			if view != debug && strings.Contains(s, value) && !strings.Contains(`{"k":{"redacted":true,"name":"S","source":"mcp.env:S"}:1`, value) {
				t.Errorf("view %d of %s shows %q: %s", view, src, value, s)
			}
			if !json.Valid([]byte(s)) {
				t.Errorf("view %d is no JSON: %s", view, s)
			}
		}
	})
}

// Short secrets are found as whole words.
func TestShortSecretsAreFoundAsWords(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t, secret("PIN", "84x9"))
	got := r.Text(NewRaw("84x9 pin=84x9, 84X9 a84x9 84x9b \\n84x9")).Model.String()
	if want := "<redacted> pin=<redacted>, 84X9 a84x9 84x9b \\n<redacted>"; got != want {
		t.Errorf("got %s", got)
	}
}
