import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.BatchOptions;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBatch;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RSet;
import org.redisson.api.RTransaction;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.api.TransactionOptions;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson: the objects whose commands need no script, and what the others say. */
final class RedissonChecks {
  private interface Commands {
    void run(Test test, RedissonClient client) throws Exception;
  }

  private interface Call {
    void run() throws Exception;
  }

  static List<Main.Subject> subjects() {
    Map<String, Main.Check> checks = new LinkedHashMap<>();
    checks.put("RBucket", with(RedissonChecks::buckets));
    checks.put("RBucket.compareAndSet", with((test, client) -> attempt(() -> {
      RBucket<String> bucket = client.getBucket(test.name(0));
      bucket.set("a");
      Test.same("compareAndSet", bucket.compareAndSet("a", "b"), true);
    })));
    checks.put("RBucket.getAndDelete", with((test, client) -> attempt(() -> {
      RBucket<String> bucket = client.getBucket(test.name(0));
      bucket.set("a");
      Test.same("getAndDelete", bucket.getAndDelete(), "a");
    })));
    checks.put("RBucket.expire", with((test, client) -> attempt(() -> {
      RBucket<String> bucket = client.getBucket(test.name(0));
      bucket.set("a");
      Test.same("expire", bucket.expire(Duration.ofSeconds(50)), true);
    })));
    checks.put("RBuckets", with(RedissonChecks::severalBuckets));
    checks.put("RAtomicLong", with(RedissonChecks::numbers));
    checks.put("RMap", with(RedissonChecks::maps));
    checks.put("RMap.put", with((test, client) -> attempt(
        () -> Test.same("put", client.getMap(test.name(0)).put("field", "value"), null))));
    checks.put("RMap.keySet by HSCAN", with((test, client) -> attempt(() -> {
      RMap<String, String> map = client.getMap(test.name(0));
      map.fastPut("a", "1");
      Test.same("keys", new HashSet<>(map.keySet()), Set.of("a"));
    })));
    checks.put("RSet", with(RedissonChecks::sets));
    checks.put("RKeys", with(RedissonChecks::keys));
    checks.put("RBatch atomic", with(RedissonChecks::batch));
    checks.put("RTransaction", with((test, client) -> attempt(() -> transaction(test, client))));
    checks.put("lock", with((test, client) -> attempt(() -> lock(test, client))));
    checks.put("rate limiter", with((test, client) -> attempt(() -> rateLimiter(test, client))));
    return List.of(Main.Subject.client("redisson", Redisson.class, checks, RedissonChecks::writer));
  }

  private static RedissonClient open(String host, int port) {
    Config config = new Config();
    config.setCodec(StringCodec.INSTANCE);
    config.useSingleServer().setAddress("redis://" + host + ":" + port);
    return Redisson.create(config);
  }

  private static Main.Check with(Commands commands) {
    return test -> {
      RedissonClient client = open(test.host, test.port);
      try {
        commands.run(test, client);
      } finally {
        client.shutdown(0, 1, TimeUnit.SECONDS);
      }
    };
  }

  private static Main.Writer writer(String host, int port) {
    RedissonClient client = open(host, port);
    return new Main.Writer() {
      @Override
      public void set(String name, String value) {
        client.getBucket(name).set(value);
      }

      @Override
      public String get(String name) {
        return client.<String>getBucket(name).get();
      }
    };
  }

  /** Makes a call that needs a command which is not built: the error that its user sees is the reason of a skip. */
  private static void attempt(Call call) throws Exception {
    try {
      call.run();
    } catch (Exception failure) {
      String text = Main.textOf(failure);
      if (text.contains("script is not known") || text.contains("unknown command")) {
        // The rest of the text names channels and a future.
        throw new Main.Skip(text.replaceAll("(?s) channel: .*?params: ", " ").replaceAll("(?s), promise: .*", ""));
      }
      throw failure;
    }
  }

  private static void buckets(Test test, RedissonClient client) throws Exception {
    for (String name : test.names(0, 12)) {
      RBucket<String> bucket = client.getBucket(name);
      Test.same("get of an absent name", bucket.get(), null);
      Test.same("setIfAbsent", bucket.setIfAbsent("a"), true);
      Test.same("setIfAbsent of a present name", bucket.setIfAbsent("b"), false);
      Test.same("setIfExists", bucket.setIfExists("c"), true);
      bucket.setAndKeepTTL("d");
      Test.same("getAndSet", bucket.getAndSet("e"), "d");
      bucket.set("f", Duration.ofSeconds(1000));
      Test.about("remainTimeToLive", (bucket.remainTimeToLive() + 999) / 1000, 1000);
      Test.same("clearExpire", bucket.clearExpire(), true);
      Test.same("size", bucket.size(), 1L);
      Test.same("isExists", bucket.isExists(), true);
      Test.same("delete", bucket.delete(), true);
      Test.same("get of a deleted name", bucket.get(), null);
    }
    RBucket<String> source = client.getBucket(test.name(20));
    source.set("x");
    source.rename(test.name(21));
    Test.same("get after rename", client.getBucket(test.name(21)).get(), "x");
    Test.same("copy", client.getBucket(test.name(21)).copy(test.name(22)), true);
    Test.same("delete", client.getBucket(test.name(22)).delete(), true);
  }

  private static void severalBuckets(Test test, RedissonClient client) {
    Map<String, String> pairs = new HashMap<>();
    for (String name : test.names(0, 12)) {
      pairs.put(name, "value of " + name);
    }
    client.getBuckets().set(pairs);
    Test.same("get", client.getBuckets().get(test.names(0, 13)), pairs);
    Test.same("trySet of present names", client.getBuckets().trySet(pairs), false);
    Test.same("trySet", client.getBuckets().trySet(Map.of(test.name(20), "a", test.name(21), "b")), true);
  }

  private static void numbers(Test test, RedissonClient client) throws InterruptedException {
    RAtomicLong number = client.getAtomicLong(test.name(0));
    JedisChecks.together(4, () -> {
      for (int turn = 0; turn < 25; turn++) {
        number.incrementAndGet();
      }
    });
    Test.same("get after 100 increments", number.get(), 100L);
    Test.same("addAndGet", number.addAndGet(-58), 42L);
    Test.same("addAndGet of a double", client.getAtomicDouble(test.name(1)).addAndGet(0.5), 0.5);
  }

  private static void maps(Test test, RedissonClient client) {
    for (String name : test.names(0, 12)) {
      RMap<String, String> map = client.getMap(name);
      Test.same("fastPut", map.fastPut("a", "1"), true);
      map.putAll(Map.of("b", "2", "c", "3"));
      Test.same("get", map.get("a"), "1");
      Test.same("getAll", map.getAll(Set.of("a", "z")), Map.of("a", "1"));
      Test.same("containsKey", map.containsKey("z"), false);
      Test.same("fastPutIfAbsent", map.fastPutIfAbsent("a", "9"), false);
      Test.same("fastRemove", map.fastRemove("b", "z"), 1L);
      Test.same("size", map.size(), 2);
      Test.same("readAllMap", map.readAllMap(), Map.of("a", "1", "c", "3"));
      Test.same("readAllKeySet", map.readAllKeySet(), Set.of("a", "c"));
      Test.same("delete", map.delete(), true);
    }
  }

  private static void sets(Test test, RedissonClient client) {
    for (String name : test.names(0, 12)) {
      RSet<String> set = client.getSet(name);
      Test.same("add", set.add("a"), true);
      Test.same("addAll", set.addAll(List.of("a", "b", "c")), true);
      Test.same("remove", set.remove("b"), true);
      Test.same("contains", set.contains("b"), false);
      Test.same("readAll", set.readAll(), Set.of("a", "c"));
      Test.same("members by SSCAN", new HashSet<>(set), Set.of("a", "c"));
      Test.same("size", set.size(), 2);
    }
  }

  private static void keys(Test test, RedissonClient client) {
    for (String name : test.names(0, 36)) {
      client.getBucket(name).set("x");
    }
    Set<String> seen = new HashSet<>();
    client.getKeys().getKeysByPattern("*:" + test.prefix + ":*").forEach(seen::add);
    Test.same("getKeysByPattern", seen, Set.of(test.names(0, 36)));
    Test.same("countExists", client.getKeys().countExists(test.names(0, 40)), 36L);
    Test.same("delete", client.getKeys().delete(test.names(0, 40)), 36L);
  }

  private static void batch(Test test, RedissonClient client) {
    BatchOptions atomic = BatchOptions.defaults().executionMode(BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC);
    for (int round = 0; round < 5; round++) {
      RBatch batch = client.createBatch(atomic);
      for (String name : test.names(0, 12)) {
        batch.getAtomicLong(name).incrementAndGetAsync();
      }
      Test.same("replies", batch.execute().getResponses().size(), 12);
    }
    for (String name : test.names(0, 12)) {
      Test.same("get after 5 batches", client.getAtomicLong(name).get(), 5L);
    }
  }

  private static void transaction(Test test, RedissonClient client) {
    RTransaction transaction = client.createTransaction(TransactionOptions.defaults());
    transaction.getBucket(test.name(0)).set("a");
    transaction.getBucket(test.name(1)).set("b");
    transaction.commit();
    Test.same("get", client.getBucket(test.name(1)).get(), "b");
  }

  private static void lock(Test test, RedissonClient client) throws InterruptedException {
    RLock lock = client.getLock(test.name(0));
    Test.same("tryLock", lock.tryLock(1, 10, TimeUnit.SECONDS), true);
    lock.unlock();
  }

  private static void rateLimiter(Test test, RedissonClient client) {
    RRateLimiter limiter = client.getRateLimiter(test.name(0));
    Test.same("trySetRate", limiter.trySetRate(RateType.OVERALL, 5, Duration.ofMinutes(1)), true);
    Test.same("tryAcquire", limiter.tryAcquire(), true);
  }
}
