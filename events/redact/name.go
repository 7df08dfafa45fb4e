package redact

import (
	"slices"
	"strings"
	"unicode"
)

// sensitiveNames are the names of section 4.4 of the requirements and, after
// the empty line, names that the corpus of the project adds.
var sensitiveNames = strings.Fields(`
	access_token api_key apikey auth authorization bearer client_secret cookie
	credential id_token key_material password passwd private_key
	proxy_authorization refresh_token secret secret_input secret_value signature
	token x_access_token x_api_key x_api_token x_auth_token x_goog_api_key

	connection_string credentials dsn mfa_code otp passphrase pwd set_cookie
	signing_key`)

var sensitiveSuffixes = strings.Fields(`
	_access_token _access_key _api_key _auth_token _client_secret _credential
	_password _private_key _refresh_token _secret _secret_key _token

	_credentials _passphrase _signing_key`)

// cursors end in _token and are none: without them a model cannot ask for the
// next page of a list, and a client cannot tell whose progress it is.
var cursors = strings.Fields(`
	continuation_token next_page_token next_sync_token next_token page_token
	previous_page_token sync_token

	progress_token`)

// SensitiveName says whether a field, header, option or environment variable
// of that name holds a secret: access_token, X-Api-Key, GITHUB_TOKEN and
// clientSecret do, token_count and author do not.
func SensitiveName(name string) bool {
	n := normalName(name)
	if slices.Contains(cursors, n) {
		return false
	}
	return slices.Contains(sensitiveNames, n) ||
		slices.ContainsFunc(sensitiveSuffixes, func(s string) bool { return strings.HasSuffix(n, s) })
}

// normalName writes a name in lower case with _ for what is no letter or
// digit, and between the words of camel case. Full-width letters become plain
// ones and invisible characters go.
func normalName(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if r >= '！' && r <= '～' {
			r -= '！' - '!'
		}
		switch {
		case unicode.Is(unicode.Cf, r):
		case unicode.IsUpper(r):
			afterLower := i > 0 && (unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1]))
			lastOfRun := i > 0 && unicode.IsUpper(runes[i-1]) && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if afterLower || lastOfRun {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	return strings.Trim(b.String(), "_")
}
