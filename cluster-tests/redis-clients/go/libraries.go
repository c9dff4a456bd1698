package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redis/cache/v9"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func libraries() []Subject {
	return []Subject{
		library("go-redis/cache", "github.com/go-redis/cache/v9", Check{"cache", cacheCheck}),
		library("redsync", "github.com/go-redsync/redsync/v4", Check{"lock", redsyncCheck}),
		library("redislock", "github.com/bsm/redislock", Check{"lock", redislockCheck}),
		library("rueidislock", rueidisModule,
			Check{"lock", func(test *Test) error { return rueidislockCheck(test, false) }},
			Check{"lock with FallbackSETPX", func(test *Test) error { return rueidislockCheck(test, true) }}),
	}
}

func library(name, module string, checks ...Check) Subject {
	return Subject{name: name, module: module, kind: "framework", checks: checks}
}

type article struct {
	Title string
	Words []string
}

func cacheCheck(test *Test) error {
	client := goRedisOf(test.nodes)
	defer client.Close()
	store := cache.New(&cache.Options{Redis: client})
	for number, name := range test.names(0, 12) {
		item := article{fmt.Sprint("title ", number), []string{"a", "b"}}
		set := &cache.Item{Ctx: test.ctx, Key: name, Value: item, TTL: time.Minute}
		test.same("Set", nil, store.Set(set), nil)
		var read article
		test.same("Get", nil, store.Get(test.ctx, name, &read), nil)
		test.same("value", read, nil, item)
		test.holds("Exists", store.Exists(test.ctx, name), name)
		refused := &cache.Item{Ctx: test.ctx, Key: name, Value: article{}, TTL: time.Minute, SetNX: true}
		test.same("Set with SetNX", nil, store.Set(refused), nil)
		test.same("Get", nil, store.Get(test.ctx, name, &read), nil)
		test.same("value after SetNX", read, nil, item)
		test.same("Delete", nil, store.Delete(test.ctx, name), nil)
		missed := store.Get(test.ctx, name, &read)
		test.holds("Get of a deleted name", errors.Is(missed, cache.ErrCacheMiss), missed)
	}
	var computed atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			var read article
			err := store.Once(&cache.Item{Ctx: test.ctx, Key: test.name(20), Value: &read, Do: func(*cache.Item) (any, error) {
				computed.Add(1)
				return article{Title: "computed"}, nil
			}})
			if err != nil || read.Title != "computed" {
				computed.Add(100)
			}
		})
	}
	group.Wait()
	test.same("computations of Once", computed.Load(), nil, int32(1))
	return nil
}

func redsyncCheck(test *Test) error {
	client := goRedisOf(test.nodes)
	defer client.Close()
	locks := redsync.New(redsyncpool.NewPool(client))
	for _, name := range test.names(0, 12) {
		held := locks.NewMutex(name, redsync.WithExpiry(time.Minute))
		other := locks.NewMutex(name, redsync.WithTries(1), redsync.WithExpiry(time.Minute))
		test.same("Lock", nil, held.LockContext(test.ctx), nil)
		var taken *redsync.ErrTaken
		err := other.LockContext(test.ctx)
		test.holds("Lock of a held name", errors.As(err, &taken), err)
		done, err := held.ExtendContext(test.ctx)
		test.same("Extend", done, err, true)
		done, err = held.UnlockContext(test.ctx)
		test.same("Unlock", done, err, true)
		again, err := held.UnlockContext(test.ctx)
		test.holds("second Unlock", !again && errors.Is(err, redsync.ErrLockAlreadyExpired), err)
		test.same("Lock after Unlock", nil, other.LockContext(test.ctx), nil)
		extending := locks.NewMutex(name+":x", redsync.WithSetNXOnExtend())
		done, err = extending.ExtendContext(test.ctx)
		test.same("Extend of a free name", done, err, true)
	}
	inside, entered := exclusive(func(worker int, critical func()) error {
		mutex := locks.NewMutex(test.name(20), redsync.WithTries(1000), redsync.WithRetryDelay(5*time.Millisecond))
		if err := mutex.LockContext(test.ctx); err != nil {
			return err
		}
		critical()
		_, err := mutex.UnlockContext(test.ctx)
		return err
	})
	test.same("holders at the same time", inside, nil, int32(1))
	test.same("times held", entered, nil, int32(20))
	return nil
}

// Has four workers enter a critical part five times each. Returns the most that were inside together, and
// how often one was.
func exclusive(enter func(worker int, critical func()) error) (int32, int32) {
	var inside, insideMax, entered atomic.Int32
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for range 5 {
				err := enter(worker, func() {
					if now := inside.Add(1); now > insideMax.Load() {
						insideMax.Store(now)
					}
					time.Sleep(2 * time.Millisecond)
					inside.Add(-1)
					entered.Add(1)
				})
				if err != nil {
					entered.Add(1000)
				}
			}
		})
	}
	group.Wait()
	return insideMax.Load(), entered.Load()
}

func redislockCheck(test *Test) error {
	client := goRedisOf(test.nodes)
	defer client.Close()
	locks := redislock.New(client)
	for _, name := range test.names(0, 12) {
		held, err := locks.Obtain(test.ctx, name, time.Minute, &redislock.Options{Metadata: "worker"})
		if err != nil {
			return fmt.Errorf("Obtain: %w", err)
		}
		_, err = locks.Obtain(test.ctx, name, time.Minute, nil)
		test.holds("Obtain of a held name", errors.Is(err, redislock.ErrNotObtained), err)
		test.same("Refresh", nil, held.Refresh(test.ctx, time.Hour, nil), nil)
		left, err := held.TTL(test.ctx)
		test.holds("TTL", err == nil && left > 59*time.Minute, left)
		test.same("Release", nil, held.Release(test.ctx), nil)
		err = held.Release(test.ctx)
		test.holds("second Release", errors.Is(err, redislock.ErrLockNotHeld), err)
	}
	inside, entered := exclusive(func(worker int, critical func()) error {
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}
		lock, err := locks.Obtain(test.ctx, test.name(20), time.Minute, options)
		if err != nil {
			return err
		}
		critical()
		return lock.Release(test.ctx)
	})
	test.same("holders at the same time", inside, nil, int32(1))
	test.same("times held", entered, nil, int32(20))
	return nil
}

func rueidislockCheck(test *Test, setPx bool) error {
	open := func() (rueidislock.Locker, error) {
		return rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:  rueidis.ClientOption{InitAddress: test.nodes[:1], DisableCache: true, ForceSingleClient: true},
			FallbackSETPX: setPx, KeyPrefix: test.name(0), ExtendInterval: 100 * time.Millisecond,
			// Also the time within which a name must be taken: 20 ms by default.
			TryNextAfter: 500 * time.Millisecond,
		})
	}
	first, err := open()
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := open()
	if err != nil {
		return err
	}
	defer second.Close()
	for _, name := range test.names(1, 3) {
		held, release, err := first.TryWithContext(test.ctx, name)
		if err != nil {
			return fmt.Errorf("TryWithContext: %w", err)
		}
		_, _, err = second.TryWithContext(test.ctx, name)
		test.holds("lock of a held name", errors.Is(err, rueidislock.ErrNotLocked), err)
		time.Sleep(300 * time.Millisecond)
		test.same("held after its extension", nil, held.Err(), nil)
		release()
		_, release, err = second.ForceWithContext(test.ctx, name)
		if err != nil {
			return fmt.Errorf("ForceWithContext: %w", err)
		}
		release()
	}
	lockers := []rueidislock.Locker{first, second}
	inside, entered := exclusive(func(worker int, critical func()) error {
		var release context.CancelFunc
		var err error
		if _, release, err = lockers[worker%2].WithContext(test.ctx, test.name(20)); err != nil {
			return err
		}
		critical()
		release()
		return nil
	})
	test.same("holders at the same time", inside, nil, int32(1))
	test.same("times held", entered, nil, int32(20))
	return nil
}
