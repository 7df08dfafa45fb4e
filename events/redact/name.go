package redact

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sensitiveNames are the names of section 4.4 of the requirements and, after
// the empty line, fields and headers of which the corpus of the project says so.
// They are written without what parts their words: apikey is API_KEY too.
var sensitiveNames = setOf(`
	accesstoken apikey auth authorization bearer clientsecret cookie credential
	idtoken keymaterial passwd password privatekey proxyauthorization refreshtoken
	secret secretinput secretvalue signature token xaccesstoken xapikey xapitoken
	xauthtoken xgoogapikey

	accesskey accountkey apitoken appsecret assertion authtoken backupcode
	bearertoken cardnumber clientassertion codeverifier connectionstring cookie2
	credentials creds csrftoken cvv devicecode dpop dsn encryptionkey masterkey
	mcpsessionid mfacode ocpapimsubscriptionkey otp passcode passphrase pgpassword
	pwd recoverycode secretaccesskey secretkey securitytoken sessiontoken
	setcookie sharedaccesssignature sharedkey sharedsecret signingkey ssn sshpass
	storagekey subscriptionkey totp webhooksecret xamzsignature xauthkey xcsrftoken
	xfunctionskey xgoogsignature xhubsignature xhubsignature256 xmailgunsignature
	xsessionid xshopifyaccesstoken xsignature xslacksignature xtwiliosignature
	xxsrftoken`)

// sensitiveEnds end a name whose words are parted, behind another word.
var sensitiveEnds = strings.Fields(`
	access_token access_key api_key auth_token client_secret credential password
	private_key refresh_token secret secret_key token

	account_key apikey authorization basic_auth bearer connection_string cookie
	credentials creds db_pass dsn encryption_key http_auth jwt master_key mcp_auth
	passcode passphrase passwd proxy_auth pwd role_key secret_access_key shared_key
	signing_key smtp_pass storage_key subscription_key`)

// openNames end as sensitive ones do and are none. Without a cursor a model
// cannot ask for the next page of a list, and a client cannot tell whose
// progress it is.
var openNames = setOf(`
	continuationtoken nextpagetoken nextsynctoken nexttoken pagetoken
	previouspagetoken progresstoken synctoken`)

func setOf(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// SensitiveName says whether a field, header, option or environment variable
// of that name holds a secret: access_token, X-Api-Key, GITHUB_TOKEN and
// clientSecret do, token_count and author do not.
func SensitiveName(name string) bool {
	var words, joined [64]byte
	n := appendNormal(words[:0], name)
	j := joined[:0]
	for _, c := range n {
		if c != '_' {
			j = append(j, c)
		}
	}
	if openNames[string(j)] {
		return false
	}
	if sensitiveNames[string(j)] {
		return true
	}
	return slices.ContainsFunc(sensitiveEnds, func(end string) bool {
		rest := len(n) - len(end)
		return rest > 0 && n[rest-1] == '_' && string(n[rest:]) == end
	})
}

// normalName writes a name in lower case with _ for what is no letter or
// digit, and between the words of camel case. Full-width letters become plain
// ones and invisible characters go.
func normalName(name string) string { return string(appendNormal(nil, name)) }

func appendNormal(b []byte, name string) []byte {
	var last rune // the character before, none is 0
	for i, size := 0, 0; i < len(name); i += size {
		var r rune
		if r, size = utf8.DecodeRuneInString(name[i:]); r >= '！' && r <= '～' {
			r -= '！' - '!'
		}
		switch {
		case unicode.Is(unicode.Cf, r):
			continue
		case unicode.IsUpper(r):
			next, _ := utf8.DecodeRuneInString(name[i+size:])
			if unicode.IsLower(last) || unicode.IsDigit(last) || unicode.IsUpper(last) && unicode.IsLower(next) {
				b = append(b, '_')
			}
			b = utf8.AppendRune(b, unicode.ToLower(r))
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			b = utf8.AppendRune(b, r)
		default:
			b = append(b, '_')
		}
		last = r
	}
	return bytes.Trim(b, "_")
}
