package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const rueidisModule = "github.com/redis/rueidis"

func rueidisClient() Subject {
	return Subject{
		name: "rueidis", module: rueidisModule, kind: "client",
		checks: []Check{
			{"client-side cache", rueidisTracking},
			{"strings", onRueidis(rueidisStrings)},
			{"SET options", onRueidis(rueidisSetOptions)},
			{"numbers", onRueidis(rueidisNumbers)},
			{"keys", onRueidis(rueidisKeys)},
			{"expiry", onRueidis(rueidisExpiry)},
			{"hashes", onRueidis(rueidisHashes)},
			{"sets", onRueidis(rueidisSets)},
			{"transactions", onRueidis(rueidisTransactions)},
			{"pipeline", onRueidis(rueidisPipeline)},
			{"scan", onRueidis(rueidisScan)},
		},
		writer: func(nodes []string) (Writer, error) {
			client, err := rueidisOf(nodes)
			return rueidisWriter{client}, err
		},
	}
}

// With several addresses rueidis expects a cluster of Redis.
func rueidisOf(nodes []string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress: nodes[:1], DisableCache: true, ForceSingleClient: true,
	})
}

func onRueidis(run func(*Test, rueidis.Client)) func(*Test) error {
	return func(test *Test) error {
		client, err := rueidisOf(test.nodes)
		if err != nil {
			return err
		}
		defer client.Close()
		run(test, client)
		return nil
	}
}

type rueidisWriter struct{ client rueidis.Client }

func (writer rueidisWriter) set(ctx context.Context, name, value string) error {
	return writer.client.Do(ctx, writer.client.B().Set().Key(name).Value(value).Build()).Error()
}

func (writer rueidisWriter) get(ctx context.Context, name string) (string, bool, error) {
	value, err := writer.client.Do(ctx, writer.client.B().Get().Key(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return value, err == nil, err
}

// The default of the client needs invalidations by the server.
func rueidisTracking(test *Test) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: test.nodes[:1], ForceSingleClient: true})
	if err != nil {
		return Skip{"without DisableCache: " + err.Error()}
	}
	client.Close()
	return nil
}

func (test *Test) word(client rueidis.Client, expected string, command ...string) {
	reply, err := client.Do(test.ctx, arbitrary(client, command)).ToString()
	test.same(strings.Join(command, " "), reply, err, expected)
}

func (test *Test) number(client rueidis.Client, expected int64, command ...string) {
	reply, err := client.Do(test.ctx, arbitrary(client, command)).ToInt64()
	test.same(strings.Join(command, " "), reply, err, expected)
}

// Requires a time in seconds, of which at most a minute may have passed.
func (test *Test) about(client rueidis.Client, expected int64, name string) {
	left, err := client.Do(test.ctx, client.B().Ttl().Key(name).Build()).ToInt64()
	test.holds("TTL", err == nil && left <= expected && left > expected-60, fmt.Sprint(left, err))
}

func (test *Test) nothing(client rueidis.Client, command ...string) {
	err := client.Do(test.ctx, arbitrary(client, command)).Error()
	test.holds(strings.Join(command, " "), rueidis.IsRedisNil(err), err)
}

func arbitrary(client rueidis.Client, command []string) rueidis.Completed {
	return client.B().Arbitrary(command[0]).Args(command[1:]...).Build()
}

func rueidisStrings(test *Test, client rueidis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	set := client.B().Mset().KeyValue()
	values := map[string]string{}
	for index, name := range names {
		values[name] = fmt.Sprint("value ", index)
		set = set.KeyValue(name, values[name])
	}
	test.same("MSET", nil, client.Do(ctx, set.Build()).Error(), nil)
	read, err := rueidis.MGet(client, ctx, append(names, test.name(50)))
	for name, value := range values {
		message := read[name]
		text, failure := message.ToString()
		test.same("MGET", text, errors.Join(err, failure), value)
	}
	absent := read[test.name(50)]
	test.holds("MGET of an absent name", absent.IsNil(), absent)
	errs := rueidis.MSetNX(client, ctx, map[string]string{test.name(60): "x", names[3]: "y"})
	test.holds("MSETNX of present names", errs[names[3]] != nil, errs)
	test.nothing(client, "GET", test.name(60))
	test.number(client, 12, "APPEND", names[0], " more")
	test.number(client, 12, "STRLEN", names[0])
	test.word(client, "more", "GETRANGE", names[0], "-4", "-1")
	test.number(client, 12, "SETRANGE", names[0], "6", "X")
	test.word(client, "value X more", "GETSET", names[0], "\x00\xffbinary")
	test.word(client, "\x00\xffbinary", "GETDEL", names[0])
	test.nothing(client, "GET", names[0])
	test.word(client, "OK", "SETEX", names[1], "1000", "short")
	test.word(client, "short", "GETEX", names[1], "EX", "500")
	test.about(client, 500, names[1])
	test.word(client, "short", "GETEX", names[1], "PERSIST")
	test.number(client, -1, "TTL", names[1])
	err = client.Do(ctx, client.B().Hget().Key(names[1]).Field("field").Build()).Error()
	test.holds("error of another type", err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"), err)
}

func rueidisSetOptions(test *Test, client rueidis.Client) {
	ctx, name := test.ctx, test.name(0)
	key := func() string { return name }
	test.nothing(client, "SET", name, "a", "XX")
	ok, err := client.Do(ctx, client.B().Set().Key(key()).Value("a").Nx().ExSeconds(1000).Build()).ToString()
	test.same("SET NX EX", ok, err, "OK")
	test.nothing(client, "SET", name, "b", "NX")
	ok, err = client.Do(ctx, client.B().Set().Key(key()).Value("b").Keepttl().Build()).ToString()
	test.same("SET KEEPTTL", ok, err, "OK")
	test.about(client, 1000, name)
	old, err := client.Do(ctx, client.B().Set().Key(key()).Value("c").Get().Build()).ToString()
	test.same("SET GET", old, err, "b")
	test.number(client, -1, "TTL", name)
	at := time.Now().Add(time.Hour).Unix()
	test.word(client, "OK", "SET", name, "d", "XX", "EXAT", fmt.Sprint(at))
	test.number(client, at, "EXPIRETIME", name)
	test.word(client, "OK", "SET", name, "e", "PXAT", fmt.Sprint(at*1000+7))
	test.number(client, at*1000+7, "PEXPIRETIME", name)
	test.word(client, "OK", "SET", name, "f", "IFEQ", "e")
	test.nothing(client, "SET", name, "g", "IFEQ", "e")
	test.word(client, "f", "SET", name, "h", "NX", "GET")
	test.word(client, "OK", "SET", name, "i", "PX", "30")
	time.Sleep(60 * time.Millisecond)
	test.nothing(client, "GET", name)
}

func rueidisNumbers(test *Test, client rueidis.Client) {
	for _, name := range test.names(0, 12) {
		test.number(client, 1, "INCR", name)
		test.number(client, 42, "INCRBY", name, "41")
		test.number(client, 41, "DECR", name)
		test.number(client, 10, "DECRBY", name, "31")
		test.word(client, "10.5", "INCRBYFLOAT", name, "0.5")
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 25 {
				client.Do(test.ctx, client.B().Incr().Key(test.name(20)).Build())
			}
		})
	}
	group.Wait()
	test.word(client, "200", "GET", test.name(20))
}

func rueidisKeys(test *Test, client rueidis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	for _, name := range names {
		test.word(client, "OK", "SET", name, name)
	}
	count, err := client.Do(ctx, client.B().Exists().Key(append(names, names[0], test.name(50))...).Build()).ToInt64()
	test.same("EXISTS", count, err, int64(13))
	count, err = client.Do(ctx, client.B().Touch().Key(append(names, test.name(50))...).Build()).ToInt64()
	test.same("TOUCH", count, err, int64(12))
	test.word(client, "OK", "RENAME", names[0], test.name(51))
	test.word(client, names[0], "GET", test.name(51))
	test.number(client, 0, "RENAMENX", names[1], names[2])
	test.number(client, 1, "COPY", names[1], test.name(52))
	test.number(client, 0, "COPY", names[2], test.name(52))
	test.number(client, 1, "COPY", names[2], test.name(52), "REPLACE")
	test.word(client, names[2], "GET", test.name(52))
	test.number(client, 1, "SADD", test.name(53), "member")
	test.word(client, "OK", "RENAME", test.name(53), test.name(54))
	test.word(client, "set", "TYPE", test.name(54))
	test.number(client, 1, "SISMEMBER", test.name(54), "member")
	count, err = client.Do(ctx, client.B().Del().Key(names[:6]...).Build()).ToInt64()
	test.same("DEL", count, err, int64(5))
	count, err = client.Do(ctx, client.B().Unlink().Key(names...).Build()).ToInt64()
	test.same("UNLINK", count, err, int64(6))
}

func rueidisExpiry(test *Test, client rueidis.Client) {
	for _, name := range test.names(0, 12) {
		test.number(client, 0, "EXPIRE", name, "100")
		test.word(client, "OK", "SET", name, "x")
		test.number(client, 0, "EXPIRE", name, "100", "XX")
		test.number(client, 1, "EXPIRE", name, "60", "NX")
		test.number(client, 1, "EXPIRE", name, "3600", "GT")
		test.number(client, 0, "PEXPIRE", name, "7200000", "LT")
		test.about(client, 3600, name)
		test.number(client, 1, "PERSIST", name)
		test.number(client, -1, "PTTL", name)
		at := time.Now().Add(time.Hour).UnixMilli()
		test.number(client, 1, "EXPIREAT", name, fmt.Sprint(at/1000))
		test.number(client, 1, "PEXPIREAT", name, fmt.Sprint(at))
		test.number(client, at, "PEXPIRETIME", name)
		test.number(client, 1, "PEXPIRE", name, "20")
		time.Sleep(40 * time.Millisecond)
		test.number(client, -2, "TTL", name)
	}
}

func rueidisHashes(test *Test, client rueidis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		test.number(client, 3, "HSET", name, "a", "1", "b", "2", "c", "3")
		test.number(client, 0, "HSETNX", name, "a", "9")
		test.nothing(client, "HGET", name, "z")
		test.number(client, 5, "HINCRBY", name, "a", "4")
		test.word(client, "5.25", "HINCRBYFLOAT", name, "a", "0.25")
		test.number(client, 1, "HDEL", name, "b", "z")
		test.number(client, 2, "HLEN", name)
		test.number(client, 0, "HEXISTS", name, "b")
		pairs, err := client.Do(ctx, client.B().Hgetall().Key(name).Build()).AsStrMap()
		test.same("HGETALL", pairs, err, map[string]string{"a": "5.25", "c": "3"})
		some, err := client.Do(ctx, client.B().Hmget().Key(name).Field("c", "z").Build()).AsStrSlice()
		test.same("HMGET", some, err, []string{"3", ""})
	}
	many := []string{"HSET", test.name(20)}
	for field := range 700 {
		many = append(many, fmt.Sprint(field), "x")
	}
	test.number(client, 700, many...)
	cursor, found := uint64(0), 0
	for {
		page, err := client.Do(ctx, client.B().Hscan().Key(test.name(20)).Cursor(cursor).Count(100).Build()).AsScanEntry()
		test.same("HSCAN", nil, err, nil)
		found += len(page.Elements) / 2
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	test.same("fields by HSCAN", found, nil, 700)
}

func rueidisSets(test *Test, client rueidis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		test.number(client, 3, "SADD", name, "a", "b", "c", "a")
		test.number(client, 1, "SREM", name, "b", "z")
		test.number(client, 2, "SCARD", name)
		test.number(client, 0, "SISMEMBER", name, "b")
		flags, err := client.Do(ctx, client.B().Smismember().Key(name).Member("a", "b").Build()).AsIntSlice()
		test.same("SMISMEMBER", flags, err, []int64{1, 0})
		members, err := client.Do(ctx, client.B().Smembers().Key(name).Build()).AsStrSlice()
		sort.Strings(members)
		test.same("SMEMBERS", members, err, []string{"a", "c"})
		page, err := client.Do(ctx, client.B().Sscan().Key(name).Cursor(0).Build()).AsScanEntry()
		test.same("SSCAN", len(page.Elements), err, 2)
	}
}

func rueidisTransactions(test *Test, client rueidis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	refused := client.Dedicated(func(dedicated rueidis.DedicatedClient) error {
		if err := dedicated.Do(ctx, dedicated.B().Watch().Key(names...).Build()).Error(); err != nil {
			return err
		}
		test.word(client, "OK", "SET", names[5], "changed by another connection")
		replies := dedicated.DoMulti(ctx, dedicated.B().Multi().Build(),
			dedicated.B().Set().Key(names[1]).Value("x").Build(), dedicated.B().Exec().Build())
		return replies[2].Error()
	})
	test.holds("EXEC after a change", rueidis.IsRedisNil(refused), refused)
	test.nothing(client, "GET", names[1])
	err := client.Dedicated(func(dedicated rueidis.DedicatedClient) error {
		watch := dedicated.Do(ctx, dedicated.B().Watch().Key(names...).Build()).Error()
		commands := rueidis.Commands{dedicated.B().Multi().Build()}
		for _, name := range names {
			commands = append(commands, dedicated.B().Set().Key(name).Value("by EXEC "+name).Build())
		}
		replies := dedicated.DoMulti(ctx, append(commands, dedicated.B().Exec().Build())...)
		done, err := replies[len(replies)-1].ToArray()
		test.same("replies of EXEC", len(done), errors.Join(watch, err), 12)
		return nil
	})
	test.same("transaction", nil, err, nil)
	for _, name := range names {
		test.word(client, "by EXEC "+name, "GET", name)
	}
}

func rueidisPipeline(test *Test, client rueidis.Client) {
	var commands rueidis.Commands
	for number := range 500 {
		name := test.name(number)
		commands = append(commands, client.B().Set().Key(name).Value(fmt.Sprint(number)).Build(),
			client.B().Get().Key(name).Build())
	}
	for index, reply := range client.DoMulti(test.ctx, commands...) {
		text, err := reply.ToString()
		expected := "OK"
		if index%2 == 1 {
			expected = fmt.Sprint(index / 2)
		}
		test.same("reply in a pipeline", text, err, expected)
	}
}

func rueidisScan(test *Test, client rueidis.Client) {
	var commands rueidis.Commands
	for number := range 300 {
		commands = append(commands, client.B().Set().Key(test.name(number)).Value("x").Build())
	}
	for _, reply := range client.DoMulti(test.ctx, commands...) {
		test.same("SET in a pipeline", nil, reply.Error(), nil)
	}
	seen := map[string]bool{}
	scanner := rueidis.NewScanner(func(cursor uint64) (rueidis.ScanEntry, error) {
		scan := client.B().Scan().Cursor(cursor).Match("*:" + test.prefix + ":*").Count(100).Build()
		return client.Do(test.ctx, scan).AsScanEntry()
	})
	for name := range scanner.Iter() {
		seen[name] = true
	}
	test.same("SCAN MATCH", len(seen), scanner.Err(), 300)
}
