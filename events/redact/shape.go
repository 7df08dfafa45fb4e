package redact

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The shape engine finds secrets that nobody declared: by the name before them
// (assignments, options, headers, elements), by where they stand (userinfo and
// query of a URL, connection strings, after Bearer) and by their form (tokens of
// known issuers, JWTs, private keys). It only adds ranges to those of the known
// values.
//
// Each rule leaps from one anchor to the next, a byte or a short text that it
// needs, looks back from there a bounded way, and goes on behind what it has
// hidden: the time is linear in the text, and clean text is passed over (see skim.go).

// shaped is the secret of a span that the shape engine found.
const shaped = -1

// shapes collects what is found in one text.
type shapes struct {
	text  string
	spans []span

	program program // of the command line that options are on
	seen    int     // where the words before were looked at
}

// findShapes returns the secrets in text that have a shape, in no order. has are the
// traits of the text.
func findShapes(text string, has traits) []span {
	if len(text) < minText {
		return nil
	}
	f := shapes{text: text}
	if has.all(hasColon) {
		f.colons()
	}
	if has.all(hasEquals) {
		f.equals()
	}
	if has.all(hasBlank | hasHyphen) {
		f.options()
	}
	if has.all(hasLess) {
		f.elements()
	}
	if has.all(hasColon | hasAt) {
		f.userinfo()
	}
	if has.all(hasBlank | hasW) { // of "password "
		f.netrc()
	}
	if has.all(hasBlank | hasV) { // of "PRIVATE KEY"
		f.privateKeys()
	}
	f.runs()
	return f.spans
}

// hide adds a range. What was hidden before is not hidden again: a value that is
// or begins with a marker, and what is inside of one.
func (f *shapes) hide(start, end int, name string) bool {
	if start >= end || markerLen(f.text[start:end]) > 0 || f.inMarker(start) {
		return false
	}
	f.spans = append(f.spans, span{start: start, end: end, secret: shaped, size: end - start, name: name})
	return true
}

func (f *shapes) inMarker(at int) bool {
	i := strings.LastIndexByte(f.text[max(0, at-maxMarker):at], '<')
	if i < 0 {
		return false
	}
	i += max(0, at-maxMarker)
	return i+markerLen(f.text[i:]) > at
}

// maxMarker is longer than any marker.
const maxMarker = 128

// markerLen is the length of the marker that s begins with, or 0.
func markerLen(s string) int {
	if strings.HasPrefix(s, redactionFailed) {
		return len(redactionFailed)
	}
	const head = "<redacted"
	if !strings.HasPrefix(s, head) {
		return 0
	}
	for i := len(head); i < len(s) && i < maxMarker; i++ {
		switch c := s[i]; {
		case c == '>':
			return i + 1
		case i == len(head) && c != ':', class[c]&isName == 0 && c != '/' && c != ':', c >= utf8.RuneSelf:
			return 0
		}
	}
	return 0
}

// maxBack is how far a rule looks back from its anchor.
const maxBack = 64

// class says what bytes are for: a bit each.
var class = func() (t [256]byte) {
	for c := range t {
		switch c := byte(c); {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			t[c] = isWord | isName | isRun
		case c == '_' || c == '-' || c == '.':
			t[c] = isName | isRun
		case c == '~' || c == '+' || c == '/' || c == '=':
			t[c] = isRun
		case c >= utf8.RuneSelf:
			t[c] = isName
		}
	}
	for _, c := range " \t\r\n\"'`,;&<>|)}]" {
		t[c] |= endsValue
	}
	return t
}()

const (
	isWord    = 1 << iota // letter or digit
	isName                // may be in the name of a variable, field, header or option
	isRun                 // may be in a token
	endsValue             // ends a value without quotes
)

// nameBefore is the name that ends at the offset end, but for quotes, a closing
// bracket and blanks between.
func (f *shapes) nameBefore(end int) string {
	low := max(0, end-maxBack)
	for end > low && (f.text[end-1] == ' ' || f.text[end-1] == '\t') {
		end--
	}
	for end > low && strings.IndexByte("\"'`\\]", f.text[end-1]) >= 0 {
		end--
	}
	start := end
	for start > low && class[f.text[start-1]]&isName != 0 {
		start--
	}
	return f.text[start:end]
}

// A value is what stands after a name.
type value struct {
	start, end int
	quote      byte // 0 without
	slashes    int  // before the quote
	more       bool // it goes on: so much suffices to judge it
}

// maxJudged is how much of a value is looked at before it is hidden.
const maxJudged = 256

// valueAt reads the value at the offset at, in quotes or up to what ends it.
func (f *shapes) valueAt(at int) (v value) {
	s := f.text
	for at < len(s) && s[at] == '\\' && v.slashes < 8 {
		at++
		v.slashes++
	}
	if at < len(s) && (s[at] == '"' || s[at] == '\'' || s[at] == '`') {
		v.quote = s[at]
		at++
	} else {
		at -= v.slashes
	}
	v.start, v.end = at, at
	return f.read(v, maxJudged)
}

// extend reads the rest of a value.
func (f *shapes) extend(v value) value {
	if v.more {
		v = f.read(v, len(f.text))
	}
	return v
}

// read moves the end of a value, by limit bytes at most.
func (f *shapes) read(v value, limit int) value {
	s := f.text
	end := min(len(s), v.end+limit)
	for ; v.end < end; v.end++ {
		c := s[v.end]
		switch {
		case v.quote != 0 && c == v.quote:
			// The escape of the closing quote is the one of the opening quote.
			v.end, v.more = max(v.start, v.end-v.slashes), false
			return v
		case v.quote != 0 && c == '\n', v.quote == 0 && class[c]&endsValue != 0:
			v.more = false
			return v
		case c == '\\' && v.quote != 0 && v.slashes == 0:
			v.end++ // and what it escapes
		case c == '\\' && v.quote == 0 && v.end+1 < len(s) && strings.IndexByte(`nrt"'`, s[v.end+1]) >= 0:
			v.more = false
			return v
		}
	}
	v.end = min(v.end, len(s))
	v.more = v.end < len(s)
	return v
}

// skipBlanks returns the offset of what is not blank after at, on the line.
func (f *shapes) skipBlanks(at int) int {
	for at < len(f.text) && (f.text[at] == ' ' || f.text[at] == '\t') {
		at++
	}
	return at
}

// colons finds what follows a colon: name: value, name := value, and the parts
// of URLs and of connection strings.
func (f *shapes) colons() {
	for at := 0; ; {
		i := strings.IndexByte(f.text[at:], ':')
		if i < 0 {
			return
		}
		at += i + 1
		switch rest := f.text[at:]; {
		case strings.HasPrefix(rest, "//"):
			at = max(at, f.url(at-1))
		case strings.HasPrefix(rest, "="):
			at = max(at, f.assigned(at-1, at+1))
		default:
			end := f.assigned(at-1, at)
			if end == 0 {
				end = f.pgpass(at)
			}
			at = max(at, end)
		}
	}
}

// equals finds what follows an equals sign.
func (f *shapes) equals() {
	for at := 0; ; {
		i := strings.IndexByte(f.text[at:], '=')
		if i < 0 {
			return
		}
		i += at
		at = i + 1
		if i > 0 && strings.IndexByte("=!<>:+*/%|^~", f.text[i-1]) >= 0 {
			continue // a comparison, or it was a colon's
		}
		from := at
		if from < len(f.text) && f.text[from] == '>' {
			from++
		} else if from < len(f.text) && (f.text[from] == '=' || f.text[from] == '~') {
			continue
		}
		at = max(at, f.assigned(i, from))
	}
}

// assigned hides the value from the offset from on when the name before the
// separator at sep is that of a secret, and returns where it ends, or 0.
func (f *shapes) assigned(sep, from int) int {
	name := f.nameBefore(sep)
	if len(name) < 2 {
		return 0
	}
	kind := nameKind(name)
	if kind == openName {
		if !f.inQuery(sep-len(name)) || !isIn(queryNames, name) {
			return 0
		}
		kind = queryName
	}
	at := f.skipBlanks(from)
	if kind == headerName {
		return f.header(at, name)
	}
	v := f.valueAt(at)
	if v.start < len(f.text) && f.text[sep] == ':' && f.text[v.start] == '[' && at == from {
		v = f.valueAt(at + 1) // as Go prints a list
	}
	if v.start == v.end {
		return 0
	}
	if q := strings.IndexByte(f.text[v.start:v.end], '#'); q > 0 && f.inQuery(sep-len(name)) {
		v.end, v.more = v.start+q, false
	}
	text := f.text[v.start:v.end]
	if kind == queryName && !random(text) || tellsNothing(text) {
		return 0
	}
	switch close := at == from && f.text[sep] == '='; {
	case nameKind(text) != openName:
		return 0 // the name of one: token=token
	case v.quote != 0 && strings.ContainsAny(text, " \t"):
		// Words that a person reads, unless one of them is no word.
		if !anyRandom(text) {
			return 0
		}
	case v.quote == 0 && isCode(f.text[v.end:], text):
		return 0
	case (v.quote != 0 || close) && len(text) >= minValue, random(text):
	case kind == passwordName && len(text) >= minWord && (v.more || f.endsLine(v.end)):
	default:
		return 0
	}
	if v = f.extend(v); !f.hide(v.start, v.end, name) {
		return 0
	}
	return v.end
}

// minValue is how long a value must be to be hidden after its name.
const minValue = 3

func (f *shapes) endsLine(at int) bool {
	at = f.skipBlanks(at)
	return at == len(f.text) || f.text[at] == '\n' || f.text[at] == '\r'
}

// isCode says that a value is the beginning of a call or an index, or a name
// with dots, as they stand on the right of an assignment in a program.
func isCode(rest, value string) bool {
	if strings.HasPrefix(rest, "(") {
		return true
	}
	letters, digits := 0, 0
	for i := range len(value) {
		switch c := value[i]; {
		case c == '(' || c == '[':
			return i > 0
		case '0' <= c && c <= '9':
			if digits++; i == 0 || value[i-1] == '.' {
				return false
			}
		case class[c]&isWord != 0 || c == '_':
			letters++
		case c != '.':
			return false
		}
	}
	return digits*8 <= letters && strings.IndexByte(value[:max(0, len(value)-1)], '.') > 0
}

// inQuery says that a name at the offset at is one of a query or fragment.
func (f *shapes) inQuery(at int) bool {
	if at <= 0 || at > len(f.text) {
		return false
	}
	return strings.IndexByte("?&#;", f.text[at-1]) >= 0
}

// header hides the credentials in the value of a header, which may hold blanks,
// but for the scheme.
func (f *shapes) header(at int, name string) int {
	s := f.text
	closing := byte('\n')
	for at < len(s) && strings.IndexByte("\\\"'`[{(", s[at]) >= 0 {
		switch s[at] {
		case '[':
			closing = ']'
		case '{':
			closing = '}'
		case '(':
			closing = ')'
		case '\\':
		default:
			closing = s[at]
		}
		at++
	}
	end := min(len(s), at+maxHeader)
	for _, c := range []byte{'\n', '\r', closing} {
		end = f.upTo(c, at, end)
	}
	quoted := closing == '"' && s[at-1] == '"' && (at < 2 || s[at-2] != '\\')
	for quoted && end > at && end < len(s) && s[end] == '"' && s[end-1] == '\\' {
		end = f.upTo('"', end+1, min(len(s), at+maxHeader)) // it is a part of the value
	}
	// credentialAt is the value at an offset; in quotes it has all characters but blanks.
	credentialAt := func(at int) value {
		v := f.valueAt(at)
		if quoted && v.end < end && !strings.ContainsAny(s[v.start:end], " \t\r\n,;") {
			v.end, v.more = end, false
		}
		return v
	}
	if isIn(cookieNames, name) {
		return f.cookies(at, f.trimEnd(at, end), name)
	}
	params := strings.Contains(s[at:end], `="`) || strings.Contains(s[at:end], "Credential=")
	if closing == '\n' && !params { // what the header stands in may end
		for _, c := range []byte("\"'`") {
			end = f.upTo(c, at, end)
		}
	}
	end = f.trimEnd(at, end)
	word := at
	for word < end && class[s[word]]&isName != 0 {
		word++
	}
	scheme, credential := s[at:word], f.skipBlanks(word)
	switch {
	case word == end && closing == '\n' && f.endsLine(end) && knownScheme(scheme):
		// The header is folded.
		for credential = end; credential < len(s) && credential < end+8 && blank(s[credential]); credential++ {
		}
		if v := f.valueAt(credential); credential > end && random(s[v.start:v.end]) {
			end = f.extend(v).end
			break
		}
		return 0
	case knownScheme(scheme) && word < credential && credential < end:
		v := credentialAt(credential)
		if text := s[v.start:v.end]; !params {
			if !random(text) && !(len(text) >= minText && v.end >= end && nameKind(text) == openName) || tellsNothing(text) {
				return 0
			}
			end = min(end, f.extend(v).end)
		}
	case word < credential && credential < end && !random(scheme):
		if !anyRandom(s[credential:end]) {
			return 0 // words about a header
		}
	default:
		credential = at
		v := credentialAt(at)
		if text := s[v.start:v.end]; !random(text) && !(len(text) >= minText && v.end >= end) || nameKind(text) != openName {
			return 0
		}
		end = min(end, f.extend(v).end)
	}
	if tellsNothing(s[credential:max(credential, end)]) || !f.hide(credential, end, name) {
		return 0
	}
	return end
}

// maxHeader is how much of a line is looked through for the end of a header.
const maxHeader = 8 << 10

// upTo returns where c stands between the offsets from and end, or end.
func (f *shapes) upTo(c byte, from, end int) int {
	if i := strings.IndexByte(f.text[from:max(from, end)], c); i >= 0 {
		return from + i
	}
	return end
}

func (f *shapes) trimEnd(from, end int) int {
	for end > from && (f.text[end-1] == '\\' || f.text[end-1] == ' ') {
		end--
	}
	return end
}

// cookies hides the values of cookies, all in one.
func (f *shapes) cookies(at, end int, name string) int {
	i := strings.IndexByte(f.text[at:end], '=')
	if i <= 0 || i > maxBack || strings.ContainsAny(f.text[at:at+i], " \t\"") || tellsNothing(f.text[at+i+1:end]) {
		return 0
	}
	if !f.hide(at+i+1, end, name) {
		return 0
	}
	return end
}

var cookieNames = setOf("cookie cookie2 setcookie")

var schemes = setOf("apikey aws4-hmac-sha256 basic bearer digest dpop hawk hmac negotiate ntlm oauth signature token")

func knownScheme(word string) bool {
	return len(word) <= 16 && schemes[strings.ToLower(word)]
}

// url hides the userinfo of a URL whose colon is at the offset colon, and the
// path of a web hook, and returns where it ends, or 0.
func (f *shapes) url(colon int) int {
	s := f.text
	if colon == 0 || class[s[colon-1]]&isWord == 0 {
		return 0
	}
	start := colon + len("://")
	end, user, at := start, 0, 0 // user: after its colon
	for ; end < len(s) && strings.IndexByte("/?#\"'`\\ \t\r\n", s[end]) < 0; end++ {
		switch s[end] {
		case ':':
			if user == 0 {
				user = end + 1
			}
		case '@':
			at = end
		}
	}
	if at == 0 {
		return f.hook(start)
	}
	if user == 0 || user > at {
		if text := s[start:at]; len(text) >= minSqueeze && random(text) {
			f.hide(start, at, "userinfo")
		}
		return at
	}
	if !tellsNothing(s[user:at]) {
		f.hide(user, at, "userinfo")
	}
	return at
}

// hooks begin the URLs that are secrets themselves, behind their scheme.
var hooks = []string{"hooks.slack.com/services/", "hooks.slack.com/workflows/", "discord.com/api/webhooks/", "discordapp.com/api/webhooks/", "outlook.office.com/webhook/", "hooks.zapier.com/hooks/catch/"}

func (f *shapes) hook(start int) int {
	for _, h := range hooks {
		if strings.HasPrefix(f.text[start:], h) {
			from := start + len(h)
			if v := f.extend(f.valueAt(from)); random(f.text[from:v.end]) && f.hide(from, v.end, "webhook") {
				return v.end
			}
		}
	}
	return 0
}

// pgpass hides the last field of host:port:database:user:password, where the
// port is at the offset at.
func (f *shapes) pgpass(at int) int {
	s := f.text
	i, colons := at, 0
	for limit := min(len(s), at+maxBack); i < limit && colons < 3; i++ {
		switch c := s[i]; {
		case c == ':':
			if s[i-1] == ':' {
				return 0
			}
			colons++
		case colons == 0 && (c < '0' || c > '9'), colons > 0 && class[c]&isName == 0 && c != '*':
			return 0
		}
	}
	if colons < 3 || i-at < 6 {
		return 0
	}
	v := f.valueAt(i)
	if text := s[v.start:v.end]; v.more || !random(text) || strings.IndexByte(text, ':') >= 0 || !f.hide(v.start, v.end, "password") {
		return 0
	}
	return v.end
}

// userinfo hides the password in user:password@host without a scheme.
func (f *shapes) userinfo() {
	s := f.text
	for at := 0; ; {
		i := strings.IndexByte(s[at:], '@')
		if i < 0 {
			return
		}
		i += at
		at = i + 1
		start := i
		for low := max(0, i-2*maxBack); start > low && s[start-1] != ':' && s[start-1] != '/' && s[start-1] != '@' && class[s[start-1]]&endsValue == 0; start-- {
		}
		if start < 2 || s[start-1] != ':' || class[s[start-2]]&isWord == 0 || start == i {
			continue
		}
		text, rest := s[start:i], s[at:]
		if dial := strings.HasPrefix(rest, "tcp(") || strings.HasPrefix(rest, "tcp6(") || strings.HasPrefix(rest, "unix("); dial && !tellsNothing(text) ||
			len(text) >= minSqueeze && random(text) && mixed(text) && !strings.HasPrefix(rest, "sha") && rest != "" && class[rest[0]]&isWord != 0 {
			f.hide(start, i, "userinfo")
		}
	}
}

// netrc hides what follows the word password where a login is named before it.
func (f *shapes) netrc() {
	const word = "password "
	for at := 0; ; {
		i := strings.Index(f.text[at:], word)
		if i < 0 {
			return
		}
		i += at
		at = i + len(word)
		before := f.text[max(0, i-4*maxBack):i]
		if !strings.Contains(before, "login ") && !strings.Contains(before, "machine ") {
			continue
		}
		v := f.valueAt(f.skipBlanks(at))
		if text := f.text[v.start:v.end]; random(text) && !tellsNothing(text) {
			v = f.extend(v)
			f.hide(v.start, v.end, "password")
			at = v.end
		}
	}
}

// elements hides the content of an XML element with the name of a secret.
func (f *shapes) elements() {
	s := f.text
	for at := 0; ; {
		i := strings.Index(s[at:], "</")
		if i < 0 {
			return
		}
		i += at
		at = i + 2
		end := at
		for end < len(s) && end-at < maxBack && class[s[end]]&isName != 0 {
			end++
		}
		if end == len(s) || s[end] != '>' || nameKind(s[at:end]) == openName {
			continue
		}
		low := max(0, i-8*maxBack)
		start := low + strings.LastIndexByte(s[low:i], '>') + 1
		if text := s[start:i]; start > low && len(text) >= minValue && !tellsNothing(text) && (!strings.ContainsAny(text, " \t\n") || anyRandom(text)) {
			f.hide(start, i, s[at:end])
		}
	}
}

// options hides the values of options of programs that bear secrets: --token
// VALUE, and short ones of some programs.
func (f *shapes) options() {
	s := f.text
	for at := 0; ; {
		i := strings.IndexByte(s[at:], '-')
		if i < 0 {
			return
		}
		start := at + i
		if i == 0 || s[start-1] != ' ' {
			at = start + 1
			continue
		}
		at = start + 1
		end := start
		for end < len(s) && end-start < maxBack && class[s[end]]&isName != 0 {
			end++
		}
		if end-start < 2 {
			continue
		}
		if s[start+1] != '-' {
			at = max(at, f.short(start, end))
			continue
		}
		if end == len(s) || s[end] != ' ' {
			continue // with an equals sign it is an assignment
		}
		name := s[start+2 : end]
		v := f.valueAt(f.skipBlanks(end))
		text := s[v.start:v.end]
		switch {
		case name == "user" || name == "proxy-user" || name == "userpwd":
			i := strings.IndexByte(text, ':')
			if i < 0 || tellsNothing(text[i+1:]) {
				continue
			}
			v.start += i + 1
		case nameKind(name) == openName && !isIn(optionNames, name), tellsNothing(text):
			continue
		case nameKind(name) == headerName && v.quote != 0:
			if end := f.header(f.skipBlanks(end), name); end > 0 {
				at = end
			}
			continue
		case v.quote != 0 && len(text) >= minValue, random(text):
		default:
			continue
		}
		if v = f.extend(v); f.hide(v.start, v.end, name) {
			at = v.end
		}
	}
}

// optionNames are names of secrets in options only.
var optionNames = setOf("key pat pass pin jwt creds licensekey clientkey servicekey serviceaccountkey appkey applicationkey accesskeyid keypass storepass srcstorepass deststorepass requirepass secretid secretstring cookies oauth2bearer")

// A program has short options that bear secrets: glued to the value, in the word
// before it, or before user:password.
type program struct{ glued, next, pair string }

var programs = func() map[string]program {
	m := map[string]program{
		"sshpass": {glued: "p", next: "p"}, "sqlcmd": {glued: "P", next: "P"}, "bcp": {glued: "P", next: "P"}, "ldapsearch": {glued: "w", next: "w"},
		"zip": {next: "P"}, "unzip": {next: "P"}, "redis-cli": {next: "a"}, "influx": {next: "t"}, "openssl": {next: "kK"},
		"curl": {pair: "uU"}, "http": {pair: "a"}, "smbclient": {pair: "U"},
	}
	for _, name := range strings.Fields("mysql mysqldump mysqladmin mariadb 7z rar") {
		m[name] = program{glued: "p"}
	}
	for _, name := range strings.Fields("docker podman helm az twine snowsql cqlsh mongo mongosh") {
		m[name] = program{next: "p"}
	}
	return m
}()

// maxCommand is how far before an option its program may stand.
const maxCommand = 256

// short handles an option of one hyphen.
func (f *shapes) short(start, end int) int {
	s := f.text
	option := s[start+1 : start+2]
	if !strings.Contains("pPwakKuUt", option) {
		return 0
	}
	// Each word is looked at once: the program stays the last one on the line.
	from := max(f.seen, start-maxCommand)
	if from > f.seen {
		f.program = program{}
	}
	before := s[from:start]
	f.seen = start
	if i := strings.LastIndexByte(before, '\n'); i >= 0 {
		f.program, before = program{}, before[i:]
	}
	for word := range strings.FieldsSeq(before) {
		if p, ok := programs[word[strings.LastIndexByte(word, '/')+1:]]; ok {
			f.program = p
		}
	}
	var v value
	blank := end-start == 2 && end < len(s) && s[end] == ' '
	switch {
	case end-start > 2 && strings.Contains(f.program.glued, option):
		v = f.valueAt(start + 2)
	case blank && strings.Contains(f.program.next, option):
		v = f.valueAt(f.skipBlanks(end))
	case blank && strings.Contains(f.program.pair, option):
		v = f.valueAt(f.skipBlanks(end))
		i := strings.IndexByte(s[v.start:v.end], ':')
		if i < 0 {
			return 0
		}
		v.start += i + 1
	default:
		return 0
	}
	// docker run -p 8080:80 and ssh -p 22 are no secrets.
	text := s[v.start:v.end]
	if tellsNothing(text) || strings.Trim(text, "0123456789:.") == "" || !random(text) && (v.quote == 0 || len(text) < minValue) {
		return 0
	}
	if v = f.extend(v); !f.hide(v.start, v.end, "password") {
		return 0
	}
	return v.end
}

// privateKeys hides the bodies of private keys in PEM and the like, also of such
// as have lost their head or their end.
func (f *shapes) privateKeys() {
	const words = "PRIVATE KEY"
	s := f.text
	done, noEnd := 0, 0 // where the last key ends, up to where there is no end
	for at := 0; ; {
		i := strings.Index(s[at:], words)
		if i < 0 {
			return
		}
		i += at
		at = i + len(words)
		label := s[max(done, i-maxBack):i]
		if strings.LastIndex(label, "BEGIN ") < 0 {
			end := strings.LastIndex(label, "END ")
			if end < 0 {
				continue
			}
			// The end alone: what is base64 before it.
			end += i - len(label)
			for end > done && (s[end-1] == '-' || s[end-1] == ' ') {
				end--
			}
			start := end
			for start > done && keyByte(s[start-1]) {
				start--
			}
			f.key(start, end)
			done = at
			continue
		}
		start := at
		for start < len(s) && start-at < maxBack && (s[start] == '-' || s[start] == ' ' || 'A' <= s[start] && s[start] <= 'Z' && s[start-1] != '-') {
			start++
		}
		limit := min(len(s), start+maxKeyText)
		from := min(limit, max(start, noEnd-len("END ")))
		end := start
		if j := strings.Index(s[from:limit], "END "); j >= 0 {
			for end = from + j; end > start && (s[end-1] == '-' || s[end-1] == ' '); end-- {
			}
		} else {
			noEnd = limit
			for end < len(s) && (keyByte(s[end]) || s[end] == '\\' && end+1 < len(s) && s[end+1] == 'n') {
				end++
			}
		}
		if f.key(start, end) {
			at, done = end, end
		}
	}
}

// key hides the body of a key, if it is one.
func (f *shapes) key(start, end int) bool {
	run := 0
	for i := start; i < end; i++ {
		if !keyByte(f.text[i]) || f.text[i] == '\n' || f.text[i] == '\r' {
			run = 0
		} else if run++; run >= minKeyRun {
			return f.hide(start, end, "private_key")
		}
	}
	return false
}

const (
	maxKeyText = 32 << 10 // the longest private key
	minKeyRun  = 20       // base64 in one piece that it has at least
)

// keyByte says that c is of base64 or ends a line of it.
func keyByte(c byte) bool {
	return class[c]&isWord != 0 || c == '+' || c == '/' || c == '=' || c == '\n' || c == '\r'
}

// openValues are words that stand where a secret could, and tell nothing.
var openValues = setOf(`
	any array base64 basic bearer bool boolean bytes changed denied digest disabled
	empty enabled es256 expired failed false hidden hs256 incorrect int integer
	invalid masked md5 missing nil no none null number oauth oauth1 oauth2 object
	off on optional pkcs8 prompt redacted required revoked rotated rs256 sha1
	sha256 sha512 str string true undefined unknown unset utf8 x509 yes`)

// tellsNothing says that a value stands for one, or is none.
func tellsNothing(s string) bool {
	if s == "" {
		return true
	}
	switch c := s[0]; c {
	case '{':
		return true
	case '<':
		return strings.IndexByte(s, '>') > 0
	case '$':
		return len(s) == 1 || !digit(s[1])
	case '#':
		return strings.HasPrefix(s, "#{")
	case '%': // of a format, and no escape
		return len(s) > 1 && class[s[1]]&isName != 0 && !(len(s) > 2 && isHex(s[1]) && isHex(s[2]))
	case 'x', 'X', '*', '.', '-', '_':
		if strings.Trim(s, s[:1]) == "" {
			return true
		}
	}
	if len(s) <= maxBack && openValues[strings.ToLower(s)] || strings.Trim(s, "•…") == "" {
		return true
	}
	for _, head := range []string{"your", "YOUR", "Your", "example"} {
		if strings.HasPrefix(s, head) && !strings.ContainsAny(s, "0123456789") {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// random says that s is no word and no name: six characters and more of which
// some are digits, or whose letters change their case as those of words do not.
func random(s string) bool {
	if len(s) < minText {
		return false
	}
	letters, digits, others, changes := 0, 0, 0, 0
	var last byte
	for i := range min(len(s), maxJudged) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c && c <= 'z':
			letters++
		case 'A' <= c && c <= 'Z':
			letters++
			if 'a' <= last && last <= 'z' {
				changes++
			}
		case c == '_' || c == '-' || c == '.' || c == '/' || c == ':':
		default:
			others++
		}
		last = s[i]
	}
	switch {
	case digits > 0 && letters > 0:
		return true
	case digits >= minText && letters == 0:
		return others == 0
	case others > 0 && letters > 0 && !strings.ContainsAny(s, "()[]{}"):
		return true
	}
	return len(s) >= minSqueeze && changes >= 3 && changes*4 >= letters-letters/8
}

// mixed says that s has upper case, lower case and digits.
func mixed(s string) bool {
	return strings.ContainsFunc(s, unicode.IsUpper) && strings.ContainsFunc(s, unicode.IsLower) && strings.ContainsFunc(s, unicode.IsDigit)
}

// anyRandom says that one of the first words of s is random.
func anyRandom(s string) bool {
	for word := range strings.FieldsSeq(s[:min(len(s), maxJudged)]) {
		if len(word) >= minFolded && random(strings.Trim(word, ".,;:!?")) && !strings.Contains(word, "://") {
			return true
		}
	}
	return false
}

// The kinds of names in text.
const (
	openName     = iota
	secretName   // of a secret
	passwordName // of a password, which may be any word
	headerName   // of a header whose value is of several words
	queryName    // of a secret in a query only
)

var (
	headerNames   = setOf("authorization proxyauthorization xauthorization xforwardedauthorization xoriginalauthorization cookie cookie2 setcookie")
	passwordNames = setOf("password passwd pwd passphrase pgpassword sshpass userpassword dbpassword pass")
	// textNames are names of secrets in text only, where the value must look like one.
	textNames = setOf("pass pat jwt sas pgpass accesskeyid awsaccesskeyid githubpat")
	// queryNames are names of secrets in a query only (section 4.4).
	queryNames = setOf(`
		code jwt key session xamzsignature

		auth hmac jsessionid nonce pass phpsessid samlresponse sessionid sid sig skoid
		state ticket xamzcredential xamzsecuritytoken xgoogcredential`)
)

// nameKind says of what kind a name in text is.
func nameKind(name string) int {
	end := len(name) // of its last word
	for end > 0 && (name[end-1] == '-' || name[end-1] == '_' || name[end-1] == '.') {
		end--
	}
	if end < 3 || class[name[end-1]]&isName == 0 || !endsLikeSecret(name[:end]) {
		return openName
	}
	return listedKind(name)
}

// listedKind is the kind of a name by the lists.
func listedKind(name string) int {
	var b [maxBack]byte
	n := squeezed(b[:0], name)
	switch {
	case headerNames[string(n)]:
		return headerName
	case passwordNames[string(n)]:
		return passwordName
	case textNames[string(n)] || SensitiveName(name):
		return secretName
	case bytes.HasSuffix(n, []byte("password")) || bytes.HasSuffix(n, []byte("passwd")):
		return passwordName
	case strings.HasSuffix(name, "_KEY") && len(n) > 6 && !openKeys[string(n)]:
		return secretName
	}
	return openName
}

// openKeys are names of keys that are no secrets.
var openKeys = setOf("publickey sshpublickey primarykey foreignkey sortkey partitionkey registrykey")

func isIn(set map[string]bool, name string) bool {
	var b [maxBack]byte
	return set[string(squeezed(b[:0], name))]
}

// squeezed appends a name without what parts its words, in lower case.
func squeezed(b []byte, name string) []byte {
	for i := range len(name) {
		switch c := name[i]; {
		case class[c]&isWord != 0:
			b = append(b, fold[c])
		case c >= utf8.RuneSelf:
			return bytes.ReplaceAll(appendNormal(b[:0], name), []byte("_"), nil)
		}
	}
	return b
}
