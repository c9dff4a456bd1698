// Makes one call of TiKV's own, unmodified Go client and prints what its user sees.
//
//	tikv-go ADDR CALL DIR
//	tikv-go ADDR
//
// It connects, so that it knows the regions, creates DIR/ready, waits for DIR/go, and makes the call. Without a call
// it writes, reads and scans some keys. The last line is one JSON object. The variables TLS_CA, TLS_CERT and TLS_KEY
// name the files of TLS.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/rawkv"
)

type seen struct {
	Error   string  `json:"error"` // empty for success
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
}

func main() {
	var found seen
	var err error
	switch len(os.Args) {
	case 2:
		found, err = round(os.Args[1])
	case 4:
		found, err = run(os.Args[1], os.Args[2], os.Args[3])
	default:
		fmt.Fprintln(os.Stderr, "usage: tikv-go ADDR [CALL DIR]")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tikv-go:", err)
		os.Exit(3)
	}
	line, _ := json.Marshal(found)
	fmt.Println(string(line))
}

func connect(ctx context.Context, address string) (*rawkv.Client, error) {
	files := config.NewSecurity(os.Getenv("TLS_CA"), os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY"), nil)
	return rawkv.NewClient(ctx, []string{address}, files)
}

// round writes, reads and scans ten keys.
func round(address string) (seen, error) {
	ctx := context.Background()
	client, err := connect(ctx, address)
	if err != nil {
		return seen{}, err
	}
	key := func(number int) []byte { return fmt.Appendf(nil, "round/go/%d", number) }
	for number := range 10 {
		if err := client.Put(ctx, key(number), key(number)); err != nil {
			return seen{}, err
		}
		value, err := client.Get(ctx, key(number))
		if err != nil || !bytes.Equal(value, key(number)) {
			return seen{}, fmt.Errorf("%s has the value %q: %w", key(number), value, err)
		}
	}
	keys, _, err := client.Scan(ctx, key(0), []byte("round/go0"), 100)
	if err == nil && len(keys) != 10 {
		err = fmt.Errorf("a scan of 10 keys returned %d", len(keys))
	}
	return seen{Rows: len(keys)}, err
}

func run(address, call, dir string) (seen, error) {
	ctx := context.Background()
	client, err := connect(ctx, address)
	if err != nil {
		return seen{}, err
	}
	client.SetAtomicForCAS(call == "swap")
	if _, err := client.Get(ctx, []byte("answers/warm")); err != nil {
		return seen{}, err
	}
	if err := handshake(dir); err != nil {
		return seen{}, err
	}
	var found seen
	started := time.Now()
	switch call {
	case "put":
		err = client.Put(ctx, []byte("answers/go"), []byte("1"))
	case "long-key":
		err = client.Put(ctx, make([]byte, 9000), []byte("1"))
	case "swap":
		_, _, err = client.CompareAndSwap(ctx, []byte("answers/go"), nil, []byte("1"))
	case "get":
		_, err = client.Get(ctx, []byte("answers/go"))
	default:
		return seen{}, fmt.Errorf("no call %q", call)
	}
	found.Seconds = time.Since(started).Seconds()
	if err != nil {
		found.Error = err.Error()
	}
	return found, nil
}

// handshake waits until the caller has prepared what the call meets.
func handshake(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "ready"), nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go")); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
