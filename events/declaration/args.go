package declaration

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gatebus/gatebus/events/redact"
)

// argument is one argument, or an option and the argument that is its value.
type argument struct {
	at       int    // index of the value, or else of the option
	name     string // "--token", "-p"; empty for a positional argument
	value    string
	assigned bool // the value comes after "="
	secret   bool
}

// option is what counts as one (R65). A longer name is no option of anybody,
// but may be a token.
var option = regexp.MustCompile(`^--?[A-Za-z][A-Za-z0-9_-]{0,47}(?s:=(.*))?$`)

// arguments parses an argument list as far as a preview needs it. Of a single
// dash with more than a letter only the letter is a name, since in -pSECRET the
// rest is the value (R65). The value of a secret option may be the next
// argument, unless that is an option itself: it must not be hidden from who
// consents (R66).
func arguments(command string, args []string) []argument {
	var list []argument
	programs := programs{}.with(command)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		own, value := programs.secret(arg)
		programs = programs.with(arg)
		switch {
		case own != "" && value != "":
			list = append(list, argument{at: i, name: own, value: value, assigned: true, secret: true})
			continue
		case own != "" && i+1 < len(args) && !option.MatchString(args[i+1]):
			i++
			list = append(list, argument{at: i, name: own, value: args[i], secret: true})
			continue
		}
		if !option.MatchString(arg) {
			list = append(list, argument{at: i, value: arg})
			continue
		}
		name, value, assigned := strings.Cut(arg, "=")
		a := argument{at: i, name: name, value: value, assigned: assigned, secret: secretOption(name)}
		if a.secret && !assigned && i+1 < len(args) && !option.MatchString(args[i+1]) {
			i++
			a.at, a.value = i, args[i]
		}
		if !strings.HasPrefix(arg, "--") && len(name) > 2 {
			a.name = name[:2]
			if !a.secret {
				a.value, a.assigned = arg[2:], false
			}
		}
		list = append(list, a)
	}
	return list
}

var (
	// secretStems make an option secret wherever they stand in its name (R66).
	secretStems = []string{
		"api_key", "apikey", "authorization", "cookie", "credential", "password", "passwd", "private_key", "secret", "token",
	}
	// secretWords do so as a word of the name.
	secretWords = []string{"auth", "creds", "header", "headers", "jwt", "key", "pass", "passcode", "pat", "pin"}
)

// flagPrefixes begin the name of an option that is about secrets and has none
// as its value; "_stdin" ends it.
var flagPrefixes = []string{"no_", "show_", "ask_", "use_"}

func secretOption(name string) bool {
	n := strings.ToLower(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
	if strings.HasSuffix(n, "_stdin") || slices.ContainsFunc(flagPrefixes, func(p string) bool { return strings.HasPrefix(n, p) }) {
		return false
	}
	return redact.SensitiveName(name) ||
		slices.ContainsFunc(secretStems, func(s string) bool { return strings.Contains(n, s) }) ||
		slices.ContainsFunc(strings.Split(n, "_"), func(w string) bool { return slices.Contains(secretWords, w) })
}

// ownOptions are short options whose value is a secret with one program only: the
// words of the program, the option, and where the value stands: glued to it, next
// after it, or either.
var ownOptions = rows(`
	mysql -p glued; mysqldump -p glued; mysqladmin -p glued; mariadb -p glued; 7z -p glued; rar -p glued; xfreerdp /p glued
	sshpass -p either; sqlcmd -P either; bcp -P either; ldapsearch -w either; curl -H either; curl -b either; curl -E either
	curl -u either; curl -U either; smbclient -U either; http -a either
	docker login -p next; podman login -p next; helm registry login -p next; az login -p next; redis-cli -a next
	mongo -p next; mongosh -p next; openssl -passin next; openssl -passout next; openssl -pass next; openssl enc -k next
	openssl enc -K next; zip -P next; unzip -P next; twine -p next; snowsql -p next; cqlsh -p next; influx -t next`)

// codeOptions turn a program into one that runs whatever it is given, or that gives
// it more of the host: arguments that a person must not overlook (E2).
var codeOptions = flat(`
	npx: -c --call -e --eval --node-arg --node-options --shell --script-shell
	npm: exec -c --call --script-shell --node-options
	pnpm: dlx exec -c
	yarn: dlx exec
	bunx: -e --eval
	bun: -e --eval -p --print --preload
	node: -e --eval -p --print -r --require --import --loader --experimental-loader --inspect --inspect-brk --env-file
	deno: eval -A --allow-all --allow-run --unsafely-ignore-certificate-errors
	uvx: --from --with --with-editable --index --index-url --extra-index-url --default-index
	uv: run --with --from
	pipx: run --spec --pip-args
	python: -c -m -i
	python3: -c -m -i
	sh: -c
	bash: -c -i --rcfile --init-file
	zsh: -c
	dash: -c
	cmd: /c /k
	powershell: -c -Command -EncodedCommand -e -enc -File
	pwsh: -c -Command -EncodedCommand -e -enc -File
	perl: -e -E -M
	ruby: -e -r
	php: -r -B -R
	docker: -v --volume --mount --privileged --cap-add --device --pid --net --network --userns --ipc --security-opt --entrypoint -u --user --add-host --env-file
	podman: -v --volume --mount --privileged --cap-add --device --pid --net --network --userns --ipc --security-opt --entrypoint -u --user --add-host --env-file
	env: -S
	xargs: sh bash
	ssh: -o -F
	git: -c --upload-pack --exec --config
	curl: -K --config -o --output --proxy
	tar: --to-command --checkpoint-action --use-compress-program
	find: -exec -execdir
	make: -f
	go: run
	cargo: run install
	java: -javaagent -agentlib -agentpath
	sudo: -E
	nsenter: -t
	systemd-run: --user`)

// openEnv are variables that may be declared and that lead a program elsewhere, or
// change whom it trusts: a person must not overlook them either (E3).
var openEnv = strings.Fields(`
	PATH USER LOGNAME PWD OLDPWD XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR TERMINFO TERMCAP APPDATA LOCALAPPDATA
	SYSTEMROOT COMSPEC PATHEXT WINDIR

	HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
	SSLKEYLOGFILE CURL_HOME WGETRC NETRC NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED HOSTALIASES RES_OPTIONS
	LOCALDOMAIN RESOLV_HOST_CONF

	DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG CONTAINER_HOST KUBECONFIG SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS DISPLAY
	WAYLAND_DISPLAY XAUTHORITY GPG_AGENT_INFO AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_PROFILE CLOUDSDK_CONFIG
	ANSIBLE_CONFIG TF_CLI_CONFIG_FILE

	NPM_CONFIG_PREFIX NPM_CONFIG_USERCONFIG NPM_CONFIG_GLOBALCONFIG NPM_CONFIG_REGISTRY BUN_INSPECT DENO_DIR
	TS_NODE_PROJECT VITE_NODE_DEPS_MODULE_DIRECTORIES PYTHONCASEOK PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE
	UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_CONFIG_FILE UV_PYTHON GEM_PATH GEM_HOME BUNDLE_GEMFILE CLASSPATH
	MAVEN_OPTS GRADLE_OPTS COMPLUS_VERSION GODEBUG GOFLAGS GOPROXY GONOSUMDB GOINSECURE CARGO_HOME JULIA_LOAD_PATH
	CDPATH GLOBIGNORE MALLOC_TRACE LOCPATH NLSPATH GETCONF_DIR`)

// ownOption is one of ownOptions.
type ownOption struct {
	program      []string
	option, form string
}

func rows(text string) (list []ownOption) {
	for row := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		if w := strings.Fields(row); len(w) > 2 {
			list = append(list, ownOption{w[:len(w)-2], w[len(w)-2], w[len(w)-1]})
		}
	}
	return list
}

func flat(text string) map[string][]string {
	options := make(map[string][]string)
	for row := range strings.Lines(text) {
		if program, rest, ok := strings.Cut(strings.TrimSpace(row), ":"); ok {
			options[program] = strings.Fields(rest)
		}
	}
	return options
}

// programs are the words before an argument that may be the program it is for: the
// command and everything after it, since launchers start launchers.
type programs []string

// versioned is a program with a version in its name.
var versioned = regexp.MustCompile(`^(python3|python|ruby|perl|php|node)[.-]?[0-9][0-9.]*$`)

func (p programs) with(word string) programs {
	name := path.Base(strings.ReplaceAll(word, `\`, "/"))
	if ext := path.Ext(name); slices.Contains([]string{".exe", ".cmd", ".bat", ".ps1"}, strings.ToLower(ext)) {
		name = strings.TrimSuffix(name, ext)
	}
	if _, known := codeOptions[name]; !known {
		name = versioned.ReplaceAllString(name, "$1")
	}
	return append(p, name)
}

// are reports whether the words of a program came in their order.
func (p programs) are(words []string) bool {
	for _, word := range p {
		if len(words) > 0 && words[0] == word {
			words = words[1:]
		}
	}
	return len(words) == 0
}

// secret tells whether an argument is an option of the program at hand that has a
// secret: its name, and its value where that is glued to it.
func (p programs) secret(arg string) (name, value string) {
	for _, o := range ownOptions {
		switch {
		case !strings.HasPrefix(arg, o.option) || !p.are(o.program):
		case arg == o.option && o.form != "glued":
			return o.option, ""
		case arg != o.option && o.form != "next":
			return o.option, strings.TrimLeft(arg[len(o.option):], "=:")
		}
	}
	return "", ""
}

// flags are the arguments and variables of a declaration that a person must not
// overlook: "argument node -e", "environment HTTP_PROXY".
func flags(d Declaration) []string {
	var out []string
	programs := programs{}.with(d.Command)
	for _, arg := range d.Args.Reveal() {
		for _, program := range programs {
			for _, o := range codeOptions[program] {
				if code(arg, o) {
					out = append(out, "argument "+program+" "+o)
				}
			}
		}
		programs = programs.with(arg)
	}
	for name := range d.Env {
		if slices.Contains(openEnv, strings.ToUpper(name)) {
			out = append(out, "environment "+name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// code tells whether an argument is an option, alone or with its value after "=" or
// glued to its letter.
func code(arg, option string) bool {
	if len(option) == 2 && option[0] == '-' {
		return strings.HasPrefix(arg, option)
	}
	arg, _, _ = strings.Cut(arg, "=")
	return strings.EqualFold(arg, option) || strings.HasPrefix(arg, option+":")
}

var envLike = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// within are the secrets that stand in an argument beside its option: NAME=value as
// an environment has it, a header, userinfo and query of a URL, user:password.
func within(option, value string) []redact.Secret {
	list := redact.Declared{URL: value}.Secrets()
	if name, v, ok := strings.Cut(value, "="); ok && !strings.Contains(name, "://") {
		switch {
		case envLike.MatchString(name):
			list = append(list, redact.Declared{Env: map[string]string{name: v}}.Secrets()...)
		case redact.SensitiveName(name):
			list = append(list, redact.Secret{Name: name, Source: "mcp.arg:" + name, Value: redact.NewRaw(v)})
		}
	}
	if name, v, ok := strings.Cut(value, ":"); ok && redact.SensitiveName(name) {
		list = append(list, redact.Declared{Headers: map[string]string{name: v}}.Secrets()...)
	}
	if _, password, ok := strings.Cut(value, ":"); ok && slices.Contains(pairOptions, option) && password != "" {
		list = append(list, redact.Secret{Name: strings.TrimLeft(option, "-"), Source: "mcp.arg:" + option, Value: redact.NewRaw(password)})
	}
	return list
}

// pairOptions have user:password as their value.
var pairOptions = []string{"--user", "--proxy-user", "--userpwd", "--basic", "-u", "-U", "-a"}
