package declaration

import (
	"runtime"
	"slices"
	"strings"
)

// hostEnv are the variables that a child takes from the host (R75, decision
// 25), and windowsEnv those without which no program starts on Windows.
var (
	hostEnv    = []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "COLORTERM"}
	windowsEnv = []string{"SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "WINDIR"}
)

// reservedEnv are the names that no declaration sets (R77): the directories
// that the host gives a child (R76), and names whose value is code, a command,
// or a place to load code from, for the loader, the shell, the interpreter or
// the programs that it starts. That code would run unseen: who consents sees
// names, not values. Names that only lead a server elsewhere, such as KUBECONFIG
// or HTTP_PROXY, may be declared, since nothing else gives them to a server. A
// name that ends in "*" stands for all that begin so.
var reservedEnv = strings.Fields(`
	HOME USERPROFILE TMPDIR TMP TEMP

	LD_* DYLD_* GLIBC_TUNABLES GCONV_PATH GETCONF_DIR

	SHELL ENV BASH_ENV BASHOPTS SHELLOPTS PS4 PROMPT_COMMAND IFS ZDOTDIR FPATH
	KSH_ENV BASH_FUNC_*

	NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE ELECTRON_RUN_AS_NODE
	NPM_CONFIG_SCRIPT_SHELL NPM_CONFIG_NODE_OPTIONS NPM_CONFIG_USERCONFIG
	NPM_CONFIG_GLOBALCONFIG TS_NODE_PROJECT VITE_NODE_DEPS_MODULE_DIRECTORIES

	PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONINSPECT PYTHONBREAKPOINT
	PYTHONUSERBASE PYTHONEXECUTABLE PYTHONWARNINGS PYTHONPLATLIBDIR UV_PYTHON

	PERL5LIB PERL5OPT PERL5DB PERLLIB RUBYOPT RUBYLIB RUBYSHELL GEM_HOME
	GEM_PATH BUNDLE_GEMFILE PHPRC PHP_INI_SCAN_DIR LUA_INIT LUA_PATH LUA_CPATH
	JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH MAVEN_OPTS
	GRADLE_OPTS GOFLAGS JULIA_LOAD_PATH DOTNET_STARTUP_HOOKS CORECLR_PROFILER
	CORECLR_ENABLE_PROFILING RUSTC_WRAPPER ERL_FLAGS R_PROFILE

	GIT_SSH GIT_SSH_COMMAND GIT_PROXY_COMMAND GIT_EXEC_PATH GIT_CONFIG*
	GIT_EXTERNAL_DIFF GIT_EDITOR GIT_PAGER GIT_ASKPASS GIT_TEMPLATE_DIR
	GIT_SEQUENCE_EDITOR SSH_ASKPASS EDITOR VISUAL PAGER MANPAGER LESSOPEN
	LESSCLOSE BROWSER OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES`)

// Reserved tells whether an environment variable belongs to the host (R77).
// Case does not count: a declaration is the same on every system.
func Reserved(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc(reservedEnv, func(r string) bool {
		prefix, all := strings.CutSuffix(r, "*")
		return r == name || all && strings.HasPrefix(name, prefix)
	})
}

// ChildEnv is the whole environment of a stdio server, sorted (R75, R76, R77):
// a few variables of the host, which lookup gives, HOME, TMPDIR and TERM=dumb,
// and the declared ones. Declared ones win, except over reserved names. The
// result is never nil, since a child with a nil environment inherits all.
func ChildEnv(lookup func(name string) (string, bool), home, tmp string, declared map[string]string) []string {
	env := map[string]string{"TERM": "dumb"}
	allowed := hostEnv
	if runtime.GOOS == "windows" {
		allowed = append(slices.Clone(hostEnv), windowsEnv...)
		env["USERPROFILE"], env["TMP"], env["TEMP"] = home, tmp, tmp
	}
	for _, name := range allowed {
		// A shell would take such a value for a function of its own.
		if v, ok := lookup(name); ok && v != "" && !strings.HasPrefix(v, "()") {
			env[name] = v
		}
	}
	for name, v := range declared {
		if Reserved(name) {
			continue
		}
		if runtime.GOOS == "windows" {
			name = strings.ToUpper(name)
		}
		env[name] = v
	}
	env["HOME"], env["TMPDIR"] = home, tmp
	list := make([]string, 0, len(env))
	for name, v := range env {
		list = append(list, name+"="+v)
	}
	slices.Sort(list)
	return list
}
