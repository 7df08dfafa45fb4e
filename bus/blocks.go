package bus

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats.go"
)

// The log as it lies on the disk, read without a server: a server changes what it
// opens (it cuts a block at what it cannot read). The format is that of the file
// store of nats-server 2.15: without limits, deletions, compression and
// encryption, which the log's configuration excludes, a block only grows, until
// the next one begins.

const (
	recordHead = 22 // length, sequence, time, length of the subject
	recordTail = 8  // checksum
	headerBit  = 1 << 31
	maxRecord  = 32 << 20 // the server's own bound
)

// msgsDir is where the blocks of the log are, below the directory of the store.
func msgsDir(store, account string) string {
	return filepath.Join(streamDir(store, account, eventStream), "msgs")
}

func streamDir(store, account, stream string) string {
	return filepath.Join(store, "jetstream", account, "streams", stream)
}

func blockName(index int) string { return strconv.Itoa(index) + ".blk" }

// blockFiles are the numbers of the block files of a directory, in order.
func blockFiles(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".blk"); ok {
			if n, err := strconv.Atoi(name); err == nil && blockName(n) == e.Name() {
				found = append(found, n)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}

// badRecord says where a block cannot be read.
type badRecord struct {
	at  int    // offset
	why string // in words
}

func (e *badRecord) Error() string { return fmt.Sprintf("offset %d: %s", e.at, e.why) }

// scanner reads the records of one block.
type scanner struct{ sum hash.Hash }

func newScanner(index int) scanner {
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", eventStream, index))
	sum, err := highwayhash.New64(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	return scanner{sum}
}

// one takes the record at the beginning of buf and says how long it is.
func (s scanner) one(buf []byte) (r message, n int, why string) {
	if len(buf) < recordHead {
		return r, 0, "a record is cut"
	}
	le := binary.LittleEndian
	length, subjects := le.Uint32(buf), int(le.Uint16(buf[20:]))
	headers := length&headerBit != 0
	n = int(length &^ headerBit)
	body := recordHead + subjects
	if headers {
		body += 4
	}
	if n > maxRecord || n < body+recordTail {
		return r, 0, "no record"
	}
	if len(buf) < n {
		return r, 0, "a record is cut"
	}
	content, head := buf[body:n-recordTail], []byte(nil)
	if headers {
		size := int(le.Uint32(buf[body-4:]))
		if size > len(content) {
			return r, 0, "no record"
		}
		head = content[:size]
	}
	s.sum.Reset()
	s.sum.Write(buf[4:20])
	s.sum.Write(buf[recordHead : recordHead+subjects])
	s.sum.Write(content)
	if !bytes.Equal(s.sum.Sum(nil), buf[n-recordTail:n]) {
		return r, n, "a record has a wrong checksum"
	}
	r = message{seq: le.Uint64(buf[4:]), time: int64(le.Uint64(buf[12:])), subject: string(buf[recordHead : recordHead+subjects]), data: content[len(head):]}
	if len(head) > 0 {
		var err error
		if r.header, err = nats.DecodeHeadersMsg(head); err != nil {
			return r, n, "a record has no valid headers"
		}
	}
	return r, n, ""
}

// scan gives the records of buf, which begins at a record, until yield returns
// false, and says how far it came. The error is a *badRecord.
func (s scanner) scan(buf []byte, yield func(r message, end int) bool) (end int, err error) {
	for end < len(buf) {
		r, n, why := s.one(buf[end:])
		if why != "" {
			return end, &badRecord{end, why}
		}
		end += n
		if !yield(r, end) {
			break
		}
	}
	return end, nil
}

// next is where a good record begins from an offset on; 0 when none does.
func (s scanner) next(buf []byte, from int) int {
	for ; from+recordHead+recordTail <= len(buf); from++ {
		if buf[from+3]&0x7e != 0 { // far too long, cheap to see
			continue
		}
		if _, _, why := s.one(buf[from:]); why == "" {
			return from
		}
	}
	return 0
}

// sector is what a disk writes whole.
const sector = 512

// behind reports whether records follow the bad one at an offset of a block: then
// it is no torn end. Where the power goes pages reach the disk in any order, and
// one that did not reads as zeros: what follows such a hole was not stored yet.
func (s scanner) behind(buf []byte, at int) bool {
	next := s.next(buf, at+1)
	if next == 0 {
		return false
	}
	for edge := (at/sector + 1) * sector; edge <= next; edge += sector {
		if hole := buf[max(at, edge-recordTail):edge]; len(bytes.Trim(hole, "\x00")) == 0 {
			return false
		}
	}
	return true
}
