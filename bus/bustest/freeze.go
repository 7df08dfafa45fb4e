package bustest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/gatebus/gatebus/bus"
)

// Freeze makes the log of an embedded bus take no commits until thaw, as a disk does
// that is full for a while. The keys of its home let the test change the stream.
func Freeze(t testing.TB, b *bus.Bus, home string) (thaw func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(home, "keys", name))
		must(err)
		return strings.TrimSpace(string(data))
	}
	signer, err := nkeys.FromSeed([]byte(read("runtime-signing.nk")))
	must(err)
	user, err := nkeys.CreateUser()
	must(err)
	key, err := user.PublicKey()
	must(err)
	seed, err := user.Seed()
	must(err)
	claims := jwt.NewUserClaims(key)
	claims.IssuerAccount = read("runtime.account")
	token, err := claims.Encode(signer)
	must(err)
	creds, err := jwt.FormatUserConfig(token, seed)
	must(err)
	nc, err := nats.Connect("", nats.InProcessServer(b), nats.UserCredentialBytes(creds))
	must(err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(err)
	log, err := js.Stream(t.Context(), "GATEBUS_EVENTS")
	must(err)
	was := log.CachedInfo().Config
	full := was
	full.MaxMsgs, full.Discard = int64(log.CachedInfo().State.Msgs), jetstream.DiscardNew
	_, err = js.UpdateStream(t.Context(), full)
	must(err)
	return func() {
		t.Helper()
		_, err := js.UpdateStream(t.Context(), was)
		must(err)
	}
}
