package redact

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// grown is a value that is no word, the same for the same seed.
func grown(seed uint64, n int, alphabet byte) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	var letters []byte
	for c := range alphabets {
		if alphabets[c]&alphabet != 0 && c != '-' && c != '.' && c != '_' {
			letters = append(letters, byte(c))
		}
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[rng.IntN(len(letters))]
	}
	copy(b[n/2:], "7")
	return string(b)
}

// places are texts with a secret in them at %s.
var places = strings.Split(`export GITHUB_TOKEN=%s
STRIPE_KEY=%s ./run
  password: "%s"
password: %s
db.password = '%s';
os.environ["API_KEY"] = "%s"
{"client_secret": "%s", "n": 1}
{\"refresh_token\": \"%s\"}
{'access_token' => '%s'}
Authorization: Bearer %s
authorization: Basic %s
Proxy-Authorization: Digest username="bob", response="%s"
curl -H "X-Api-Key: %s" https://docs.example/
curl -u bob:%s https://docs.example/
curl --user bob:%s https://docs.example/
Cookie: theme=dark; sid=%s
headers={'Cookie': 'sid=%s'}
map[Authorization:[Bearer %s] Accept:[*/*]]
mysql -p%s -u root db
docker login -u bob -p %s registry.example
openssl enc -pass pass:%s -in f
tool --token %s --verbose
tool --db-password '%s' run
machine docs.example login bob password %s
db.example:5432:app:bob:%s
postgres://app:%s@db.example:5432/app?sslmode=require
app:%s@tcp(db.example:3306)/x
Server=db.example;User Id=sa;Password=%s;Encrypt=true
DefaultEndpointsProtocol=https;AccountName=a;AccountKey=%s;EndpointSuffix=core.example
https://docs.example/cb?state=1&code=%s#top
https://docs.example/?X-Amz-Signature=%s
wss://docs.example/s?access_token=%s&v=1
<password>%s</password>
<add key="x" password="%s"/>
panic: bad config {Token:%s Mode:dev}
level=error msg="login failed" token=%s attempt=3
sent Bearer %s and got 401
SSHPASS=%s ssh host
aws_secret_access_key = %s`, "\n")

func TestSecretsAreKnownByTheirPlace_R120(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t)
	for i, place := range places {
		value := grown(uint64(i), 24, words)
		text := "before\n" + fmt.Sprintf(place, value) + "\nafter"
		for view, s := range strings5(r.Text(NewRaw(text))) {
			if strings.Contains(s, value) || !strings.HasPrefix(s, "before\n") || !strings.HasSuffix(s, "\nafter") {
				t.Errorf("view %d of %q is %q", view, text, s)
			}
		}
		if got := r.JSON(NewRaw([]byte(`{"text":` + quote(text) + `}`))).Model.String(); strings.Contains(got, value) {
			t.Errorf("in JSON: %s", got)
		}
	}
}

// The tokens are grown, so that nothing here looks like one.
func TestTokensAreKnownByTheirForm(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t)
	for first := range forms {
		for i, f := range forms[first] {
			token := f.prefix + grown(uint64(first*100+i), max(f.least, 16), f.alphabet)
			for _, text := range []string{"a " + token + " b", "(" + token + ")", `{"x":"` + token + `"}`, "see https://docs.example/" + token + "/x", token + "."} {
				if got := r.Text(NewRaw(text)).Model.String(); strings.Contains(got, token) || !strings.Contains(got, "<redacted>") {
					t.Errorf("%s: %q became %q", f.name, text, got)
				}
			}
		}
	}
}

// What is no secret stays: code, documentation, logs.
func TestWhatOnlyLooksLikeASecretStays(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t)
	for _, text := range strings.Split(`token := os.Getenv("TOKEN")
password = config.password
api_key=os.environ["API_KEY"]
client = Client(api_key=api_key, token=token)
password: string;
token?: string | null
def login(self, password: str, token: Optional[str] = None):
const token = await getToken();
let secret = secrets.githubToken
headers["Authorization"] = "Bearer " + token
headers: { Authorization: `+"`Bearer ${token}`"+` }
Authorization: Bearer <token>
Authorization: Bearer YOUR_API_KEY
curl -H "Authorization: Bearer $TOKEN" https://docs.example/
export API_KEY=your-api-key
--token string   the token to use
--password  asks for the password
password=${DB_PASSWORD}
password: {{ .Values.password }}
password: ********
api_key: "xxxxxxxxxxxx"
secret: <redacted>
"token": "<redacted:API_TOKEN>"
Enter your password:
error: token expired
Token: expired
auth: basic
auth: oauth2
if password == "" {
if token != expected {
tokens=512 max_tokens=4096 token_count: 77
docker run -p 8080:80 -u 1000:1000 image:v1.2.3
docker pull docs.example/app:v1.2.3@sha256:9fceb02d0ae598e95dc970b74767f19372d61af8
git clone git@github.example:ops/repo.git
git clone ssh://git@github.example/ops/repo.git
https://docs.example/items?page=2&sort=name&code=de#top
https://docs.example/a@b/c
mailto:ops@mcp.example
2026-11-30T10:15:30.123Z 12:34:56 fe80::1:2:3
ab:12:34:56:78:9a
main.go:10:5: undefined: x1
npm install react@18.2.0 @types/node@20
-----BEGIN CERTIFICATE-----
if strings.Contains(s, "-----BEGIN RSA PRIVATE KEY-----") {
<password></password>
<label for="password">Password</label>
func (t *Token) Sign(secret []byte) (string, error)
sk-learn pul-request key-value dapi ghp_ glpat-
eyJhbGciOiJIUzI1NiJ9 is a header
at commit 9fceb02d0ae598e95dc970b74767f19372d61af8
550e8400-e29b-41d4-a716-446655440000
data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==
The basic authentication/authorization of version2 is Bearer token based.
WWW-Authenticate: Bearer resource_metadata="https://docs.example/.well-known/x1"
Set-Cookie is a header, Cookie: too
SELECT password, token FROM users WHERE session = 'x'
password must be at least 8 characters; token: see the docs
env: API_KEY, SECRET_KEY and DB_PASSWORD are required
password_hash_algorithm=argon2id password_min_length=12
secret_name: prod/db1 secretRef: name2
<input type="password" name="pw1">
map[string]string{"token": token, "key": key}`, "\n") {
		if got := r.Text(NewRaw(text)).Model.String(); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// In quotes the value of a header has any characters.
func TestQuotedHeadersOfAnyCharacters(t *testing.T) {
	t.Parallel()
	r := mustRedactor(t)
	for text, want := range map[string]string{
		`{"Authorization":["auR&wDh\"92h\\4dM%YUZ","x"]}`:               `{"Authorization":["<redacted>","x"]}`,
		`{"Authorization": "auR&wDh92h4dM%YUZ", "n":1}`:                 `{"Authorization": "<redacted>", "n":1}`,
		`{"Authorization": "Bearer auR&wDh\"92h4dM%YUZ", "n":"a \" b"}`: `{"Authorization": "Bearer <redacted>", "n":"a \" b"}`,
		`{\"authorization\": \"auRwDh92h4dM%YUZ\", \"n\":1}`:            `{\"authorization\": \"<redacted>\", \"n\":1}`,
		`{"Authorization": "", "n":"\"x"}`:                              `{"Authorization": "", "n":"\"x"}`,
	} {
		if got := r.Text(NewRaw(text)).Model.String(); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

// FuzzShapedSecrets: whatever stands before and after it, a secret in a place of
// secrets is hidden, and what was redacted is redacted already.
func FuzzShapedSecrets(f *testing.F) {
	for i := range places {
		f.Add("token=", "\"'", uint8(i), uint64(i))
	}
	f.Add("-----BEGIN RSA PRIVATE KEY-----\nabc", "https://a:b@", uint8(3), uint64(7))
	f.Add("Authorization: \"Bearer", "password: '", uint8(9), uint64(7))
	f.Add("Cookie: a=<redacted>; b=", "<redacted:token:", uint8(15), uint64(7))
	f.Fuzz(func(t *testing.T, before, after string, place uint8, seed uint64) {
		if len(before)+len(after) > 4000 || !utf8.ValidString(before+after) {
			return
		}
		value := grown(seed, 24, words)
		text := before + "\n" + fmt.Sprintf(places[int(place)%len(places)], value) + "\n" + after
		r := mustRedactor(t)
		views := r.Text(NewRaw(text))
		if views.Failed {
			t.Fatal("failed")
		}
		for view, s := range strings5(views) {
			if strings.Contains(s, value) {
				t.Errorf("view %d of %q shows %s: %q", view, text, value, s)
			}
			if again := strings5(r.Text(NewRaw(s)))[view]; again != s {
				t.Errorf("view %d of %q is redacted again: %q, then %q", view, text, s, again)
			}
		}
		src := `{"k":` + quote(strings.ToValidUTF8(text, "?")) + `}`
		if got := r.JSON(NewRaw([]byte(src))); got.Failed || strings.Contains(got.Event.String(), value) {
			t.Errorf("%s became %s", src, got.Event)
		}
	})
}
