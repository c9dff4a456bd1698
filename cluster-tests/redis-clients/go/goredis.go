package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const goRedisModule = "github.com/redis/go-redis/v9"

func goRedis() Subject {
	return Subject{
		name: "go-redis", module: goRedisModule, kind: "client",
		checks: []Check{
			{"strings", onGoRedis(goRedisStrings)},
			{"SET options", onGoRedis(goRedisSetOptions)},
			{"numbers", onGoRedis(goRedisNumbers)},
			{"keys", onGoRedis(goRedisKeys)},
			{"expiry", onGoRedis(goRedisExpiry)},
			{"hashes", onGoRedis(goRedisHashes)},
			{"sets", onGoRedis(goRedisSets)},
			{"transactions", onGoRedis(goRedisTransactions)},
			{"WATCH", onGoRedis(goRedisWatch)},
			{"pipeline", onGoRedis(goRedisPipeline)},
			{"scan", onGoRedis(goRedisScan)},
			{"rate limiter", onGoRedis(goRedisRateLimiter)},
		},
		writer: func(nodes []string) (Writer, error) { return goRedisWriter{goRedisOf(nodes)}, nil },
	}
}

func goRedisOf(nodes []string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: nodes[0]})
}

func onGoRedis(run func(*Test, *redis.Client)) func(*Test) error {
	return func(test *Test) error {
		client := goRedisOf(test.nodes)
		defer client.Close()
		run(test, client)
		return nil
	}
}

type goRedisWriter struct{ client *redis.Client }

func (writer goRedisWriter) set(ctx context.Context, name, value string) error {
	return writer.client.Set(ctx, name, value, 0).Err()
}

func (writer goRedisWriter) get(ctx context.Context, name string) (string, bool, error) {
	value, err := writer.client.Get(ctx, name).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return value, err == nil, err
}

// Result of any command.
type goRedisResult[T any] interface{ Result() (T, error) }

func expect[T any](test *Test, what string, result goRedisResult[T], expected T) {
	value, err := result.Result()
	test.same(what, value, err, expected)
}

// Requires a time of which at most a minute may have passed.
func expectAbout(test *Test, what string, result *redis.DurationCmd, expected time.Duration) {
	left, err := result.Result()
	test.holds(what, err == nil && left <= expected && left > expected-time.Minute, fmt.Sprint(left, err))
}

func expectNil[T any](test *Test, what string, result goRedisResult[T]) {
	value, err := result.Result()
	test.holds(what, errors.Is(err, redis.Nil), fmt.Sprint(value, err))
}

func goRedisStrings(test *Test, client *redis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	var pairs, values []any
	for index, name := range names {
		pairs = append(pairs, name, fmt.Sprint("value ", index))
		values = append(values, fmt.Sprint("value ", index))
	}
	expect(test, "MSET", client.MSet(ctx, pairs...), "OK")
	expect(test, "MGET", client.MGet(ctx, append(names, test.name(50))...), append(values, nil))
	expect(test, "MSETNX of present names", client.MSetNX(ctx, test.name(60), "x", names[3], "y"), false)
	expectNil(test, "GET after a refused MSETNX", client.Get(ctx, test.name(60)))
	expect(test, "MSETNX", client.MSetNX(ctx, test.name(60), "x", test.name(61), "y"), true)
	expect(test, "APPEND", client.Append(ctx, names[0], " more"), int64(12))
	expect(test, "STRLEN", client.StrLen(ctx, names[0]), int64(12))
	expect(test, "GETRANGE", client.GetRange(ctx, names[0], -4, -1), "more")
	expect(test, "SETRANGE", client.SetRange(ctx, names[0], 6, "X"), int64(12))
	expect(test, "GETSET", client.GetSet(ctx, names[0], "\x00\xffbinary"), "value X more")
	expect(test, "GETDEL", client.GetDel(ctx, names[0]), "\x00\xffbinary")
	expectNil(test, "GET of a deleted name", client.Get(ctx, names[0]))
	expect(test, "SETEX", client.SetEx(ctx, names[1], "short", 1000*time.Second), "OK")
	expect(test, "GETEX", client.GetEx(ctx, names[1], 500*time.Second), "short")
	expectAbout(test, "TTL", client.TTL(ctx, names[1]), 500*time.Second)
	expect(test, "GETEX PERSIST", client.GetEx(ctx, names[1], 0), "short")
	expect(test, "TTL of a persistent name", client.TTL(ctx, names[1]), -1)
	expect(test, "SETNX", client.SetNX(ctx, names[1], "other", 0), false)
	err := client.HSet(ctx, names[1], "field", "x").Err()
	test.holds("error of another type", redis.HasErrorPrefix(err, "WRONGTYPE"), err)
}

func goRedisSetOptions(test *Test, client *redis.Client) {
	ctx, name := test.ctx, test.name(0)
	expectNil(test, "SET XX of an absent name", client.SetArgs(ctx, name, "a", redis.SetArgs{Mode: "XX"}))
	expect(test, "SET NX EX", client.SetNX(ctx, name, "a", 1000*time.Second), true)
	expect(test, "SET NX of a present name", client.SetNX(ctx, name, "b", 0), false)
	expect(test, "SET KEEPTTL", client.Set(ctx, name, "b", redis.KeepTTL), "OK")
	expectAbout(test, "TTL after KEEPTTL", client.TTL(ctx, name), 1000*time.Second)
	expect(test, "SET GET", client.SetArgs(ctx, name, "c", redis.SetArgs{Get: true}), "b")
	expect(test, "TTL after SET", client.TTL(ctx, name), -1)
	expect(test, "SET XX PX", client.SetXX(ctx, name, "d", 1000500*time.Millisecond), true)
	expectAbout(test, "PTTL", client.PTTL(ctx, name), 1000500*time.Millisecond)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	expect(test, "SET EXAT", client.SetArgs(ctx, name, "e", redis.SetArgs{ExpireAt: at}), "OK")
	expect(test, "EXPIRETIME", client.ExpireTime(ctx, name), time.Duration(at.Unix())*time.Second)
	milliseconds := at.UnixMilli() + 7
	expect[any](test, "SET PXAT", client.Do(ctx, "SET", name, "f", "PXAT", milliseconds), "OK")
	expect(test, "PEXPIRETIME", client.PExpireTime(ctx, name), time.Duration(milliseconds)*time.Millisecond)
	expect(test, "SET IFEQ", client.SetIFEQ(ctx, name, "g", "f", 0), "OK")
	expectNil(test, "SET IFEQ of another value", client.SetIFEQ(ctx, name, "h", "f", 0))
	expect(test, "GET", client.Get(ctx, name), "g")
	expect(test, "SET NX GET", client.SetArgs(ctx, name, "i", redis.SetArgs{Mode: "NX", Get: true}), "g")
	expect(test, "SET PX", client.Set(ctx, name, "j", 30*time.Millisecond), "OK")
	time.Sleep(60 * time.Millisecond)
	expectNil(test, "GET of an expired name", client.Get(ctx, name))
}

func isNotInteger(err error) bool {
	return err != nil && err.Error() == "ERR value is not an integer or out of range"
}

func goRedisNumbers(test *Test, client *redis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		expect(test, "INCR", client.Incr(ctx, name), int64(1))
		expect(test, "INCRBY", client.IncrBy(ctx, name, 41), int64(42))
		expect(test, "DECR", client.Decr(ctx, name), int64(41))
		expect(test, "DECRBY", client.DecrBy(ctx, name, 31), int64(10))
		expect(test, "INCRBYFLOAT", client.IncrByFloat(ctx, name, 0.5), 10.5)
		err := client.Incr(ctx, name).Err()
		test.holds("INCR of a fraction", isNotInteger(err), err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 25 {
				client.Incr(ctx, test.name(20))
			}
		})
	}
	group.Wait()
	expect(test, "GET after 200 increments", client.Get(ctx, test.name(20)), "200")
}

func goRedisKeys(test *Test, client *redis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	for _, name := range names {
		expect(test, "SET", client.Set(ctx, name, name, 0), "OK")
	}
	expect(test, "EXISTS", client.Exists(ctx, append(names, names[0], test.name(50))...), int64(13))
	expect(test, "TOUCH", client.Touch(ctx, append(names, test.name(50))...), int64(12))
	expect(test, "RENAME", client.Rename(ctx, names[0], test.name(51)), "OK")
	expect(test, "GET of the new name", client.Get(ctx, test.name(51)), names[0])
	expect(test, "RENAMENX", client.RenameNX(ctx, names[1], names[2]), false)
	expect(test, "COPY", client.Copy(ctx, names[1], test.name(52), 0, false), int64(1))
	expect(test, "COPY to a present name", client.Copy(ctx, names[2], test.name(52), 0, false), int64(0))
	expect(test, "COPY REPLACE", client.Copy(ctx, names[2], test.name(52), 0, true), int64(1))
	expect(test, "GET of the copy", client.Get(ctx, test.name(52)), names[2])
	expect(test, "HSET", client.HSet(ctx, test.name(53), "field", "value"), int64(1))
	expect(test, "RENAME of a hash", client.Rename(ctx, test.name(53), test.name(54)), "OK")
	expect(test, "TYPE", client.Type(ctx, test.name(54)), "hash")
	expect(test, "HGETALL", client.HGetAll(ctx, test.name(54)), map[string]string{"field": "value"})
	expect(test, "TYPE of an absent name", client.Type(ctx, test.name(53)), "none")
	expect(test, "DEL", client.Del(ctx, names[:6]...), int64(5))
	expect(test, "UNLINK", client.Unlink(ctx, names...), int64(6))
	expect(test, "EXISTS", client.Exists(ctx, names...), int64(0))
}

func goRedisExpiry(test *Test, client *redis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		expect(test, "EXPIRE of an absent name", client.Expire(ctx, name, time.Hour), false)
		expect(test, "SET", client.Set(ctx, name, "x", 0), "OK")
		expect(test, "EXPIRE XX", client.ExpireXX(ctx, name, time.Hour), false)
		expect(test, "EXPIRE NX", client.ExpireNX(ctx, name, time.Minute), true)
		expect(test, "EXPIRE GT", client.ExpireGT(ctx, name, time.Hour), true)
		expect(test, "EXPIRE LT", client.ExpireLT(ctx, name, 2*time.Hour), false)
		expectAbout(test, "TTL", client.TTL(ctx, name), time.Hour)
		expect(test, "PERSIST", client.Persist(ctx, name), true)
		expect(test, "PTTL", client.PTTL(ctx, name), -1)
		at := time.Now().Add(time.Hour)
		expect(test, "EXPIREAT", client.ExpireAt(ctx, name, at), true)
		expect(test, "PEXPIREAT", client.PExpireAt(ctx, name, at), true)
		expect(test, "PEXPIRETIME", client.PExpireTime(ctx, name), time.Duration(at.UnixMilli())*time.Millisecond)
		expect(test, "PEXPIRE", client.PExpire(ctx, name, 20*time.Millisecond), true)
		time.Sleep(40 * time.Millisecond)
		expect(test, "TTL of an expired name", client.TTL(ctx, name), -2)
	}
}

func goRedisHashes(test *Test, client *redis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		expect(test, "HSET", client.HSet(ctx, name, "a", "1", "b", "2", "c", "3"), int64(3))
		expect(test, "HSETNX", client.HSetNX(ctx, name, "a", "9"), false)
		expect(test, "HGET", client.HGet(ctx, name, "a"), "1")
		expectNil(test, "HGET of an absent field", client.HGet(ctx, name, "z"))
		expect(test, "HMGET", client.HMGet(ctx, name, "b", "z"), []any{"2", nil})
		expect(test, "HINCRBY", client.HIncrBy(ctx, name, "a", 4), int64(5))
		expect(test, "HINCRBYFLOAT", client.HIncrByFloat(ctx, name, "a", 0.25), 5.25)
		expect(test, "HDEL", client.HDel(ctx, name, "b", "z"), int64(1))
		expect(test, "HLEN", client.HLen(ctx, name), int64(2))
		expect(test, "HSTRLEN", client.HStrLen(ctx, name, "a"), int64(4))
		expect(test, "HEXISTS", client.HExists(ctx, name, "b"), false)
		expect(test, "HKEYS", client.HKeys(ctx, name), []string{"a", "c"})
		expect(test, "HVALS", client.HVals(ctx, name), []string{"5.25", "3"})
		expect(test, "HGETALL", client.HGetAll(ctx, name), map[string]string{"a": "5.25", "c": "3"})
	}
	large := map[string]any{}
	for field := range 2000 {
		large[fmt.Sprintf("field %d", field)] = field
	}
	expect(test, "HSET of 2,000 fields", client.HSet(ctx, test.name(20), large), int64(2000))
	found := 0
	for scan := client.HScan(ctx, test.name(20), 0, "field *", 100).Iterator(); scan.Next(ctx); {
		found++
	}
	test.same("HSCAN", found, nil, 4000)
}

func goRedisSets(test *Test, client *redis.Client) {
	ctx := test.ctx
	for _, name := range test.names(0, 12) {
		expect(test, "SADD", client.SAdd(ctx, name, "a", "b", "c", "a"), int64(3))
		expect(test, "SREM", client.SRem(ctx, name, "b", "z"), int64(1))
		expect(test, "SCARD", client.SCard(ctx, name), int64(2))
		expect(test, "SISMEMBER", client.SIsMember(ctx, name, "b"), false)
		expect(test, "SMISMEMBER", client.SMIsMember(ctx, name, "a", "b"), []bool{true, false})
		members, err := client.SMembers(ctx, name).Result()
		sort.Strings(members)
		test.same("SMEMBERS", members, err, []string{"a", "c"})
	}
	var many []any
	for member := range 1500 {
		many = append(many, member)
	}
	expect(test, "SADD of 1,500 members", client.SAdd(ctx, test.name(20), many...), int64(1500))
	seen := map[string]bool{}
	for scan := client.SScan(ctx, test.name(20), 0, "", 100).Iterator(); scan.Next(ctx); {
		seen[scan.Val()] = true
	}
	test.same("SSCAN", len(seen), nil, 1500)
}

func goRedisTransactions(test *Test, client *redis.Client) {
	ctx, names := test.ctx, test.names(0, 12)
	for round := range 5 {
		commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, name := range names {
				pipe.IncrBy(ctx, name, 2)
			}
			pipe.HSet(ctx, test.name(50), "round", round)
			pipe.SAdd(ctx, test.name(51), round)
			return nil
		})
		test.same("EXEC", len(commands), err, 14)
	}
	for _, name := range names {
		expect(test, "GET after 5 transactions", client.Get(ctx, name), "10")
	}
	expect(test, "SCARD", client.SCard(ctx, test.name(51)), int64(5))
	commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, names[0], "text", 0)
		pipe.Incr(ctx, names[0])
		pipe.Set(ctx, names[1], "after the error", 0)
		return nil
	})
	test.holds("error inside EXEC", len(commands) == 3 && isNotInteger(err), err)
	expect(test, "GET after an error inside EXEC", client.Get(ctx, names[1]), "after the error")
}

func goRedisWatch(test *Test, client *redis.Client) {
	ctx, names := test.ctx, test.names(0, 6)
	err := client.Watch(ctx, func(tx *redis.Tx) error {
		tx.Get(ctx, names[0])
		client.Set(ctx, names[0], "changed by another connection", 0)
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Set(ctx, names[1], "x", 0).Err() })
		return err
	}, names...)
	test.holds("EXEC after a change", errors.Is(err, redis.TxFailedErr), err)
	expectNil(test, "GET after a refused EXEC", client.Get(ctx, names[1]))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 10 {
				increment(test, client, names[2], names[3])
			}
		})
	}
	group.Wait()
	expect(test, "first counter", client.Get(ctx, names[2]), "40")
	expect(test, "second counter", client.Get(ctx, names[3]), "40")
}

// Increments two numbers by a read and a guarded write, until no other connection interferes.
func increment(test *Test, client *redis.Client, first, second string) {
	for test.ctx.Err() == nil {
		err := client.Watch(test.ctx, func(tx *redis.Tx) error {
			value, err := tx.Get(test.ctx, first).Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			_, err = tx.TxPipelined(test.ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(test.ctx, first, value+1, 0)
				pipe.Set(test.ctx, second, value+1, 0)
				return nil
			})
			return err
		}, first, second)
		if err == nil {
			return
		}
		if !errors.Is(err, redis.TxFailedErr) && !redis.HasErrorPrefix(err, "TRYAGAIN") {
			test.holds("guarded increment", false, err)
			return
		}
	}
}

func goRedisPipeline(test *Test, client *redis.Client) {
	ctx := test.ctx
	commands, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 500 {
			pipe.Set(ctx, test.name(number), number, 0)
			pipe.Get(ctx, test.name(number))
		}
		return nil
	})
	test.same("number of replies", len(commands), err, 1000)
	for number := range len(commands) / 2 {
		expect(test, "GET in a pipeline", commands[2*number+1].(*redis.StringCmd), fmt.Sprint(number))
	}
}

func goRedisScan(test *Test, client *redis.Client) {
	ctx := test.ctx
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 300 {
			pipe.Set(ctx, test.name(number), number, 0)
		}
		return nil
	})
	test.same("SET in a pipeline", nil, err, nil)
	client.HSet(ctx, test.name(300), "field", "value")
	seen := map[string]bool{}
	scan := client.Scan(ctx, 0, "*:"+test.prefix+":*", 100).Iterator()
	for scan.Next(ctx) {
		seen[scan.Val()] = true
	}
	test.same("SCAN MATCH", len(seen), scan.Err(), 301)
	hashes := client.ScanType(ctx, 0, "*:"+test.prefix+":*", 1000, "hash").Iterator()
	test.holds("SCAN TYPE", hashes.Next(ctx) && hashes.Val() == test.name(300) && !hashes.Next(ctx), hashes.Err())
	found, err := client.Keys(ctx, "z:"+test.prefix+":*").Result()
	test.holds("KEYS", err == nil && len(found) >= 8 && len(found) <= 9, found)
	size, err := client.DBSize(ctx).Result()
	test.holds("DBSIZE", err == nil && size >= 301, fmt.Sprint(size, err))
}

// Counts requests in fixed windows: INCR and, for the first of a window, EXPIRE.
func goRedisRateLimiter(test *Test, client *redis.Client) {
	var allowed [12]int
	var lock sync.Mutex
	var group sync.WaitGroup
	for user, name := range test.names(0, 12) {
		for range 4 {
			group.Go(func() {
				for range 5 {
					count, err := client.Incr(test.ctx, name).Result()
					if err == nil && count == 1 {
						err = client.Expire(test.ctx, name, time.Hour).Err()
					}
					lock.Lock()
					test.same("INCR", nil, err, nil)
					if count <= 7 {
						allowed[user]++
					}
					lock.Unlock()
				}
			})
		}
	}
	group.Wait()
	for user, name := range test.names(0, 12) {
		test.same("requests allowed of 20", allowed[user], nil, 7)
		expectAbout(test, "TTL of a window", client.TTL(test.ctx, name), time.Hour)
	}
}
