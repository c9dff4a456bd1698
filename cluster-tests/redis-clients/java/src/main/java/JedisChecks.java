import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.args.ExpiryOption;
import redis.clients.jedis.params.GetExParams;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.CompareCondition;

/** Jedis. */
final class JedisChecks {
  private interface Commands {
    void run(Test test, RedisClient client) throws Exception;
  }

  static Main.Subject subject() {
    Map<String, Main.Check> checks = new LinkedHashMap<>();
    checks.put("strings", with(JedisChecks::strings));
    checks.put("SET options", with(JedisChecks::setOptions));
    checks.put("numbers", with(JedisChecks::numbers));
    checks.put("keys", with(JedisChecks::keys));
    checks.put("expiry", with(JedisChecks::expiry));
    checks.put("hashes", with(JedisChecks::hashes));
    checks.put("sets", with(JedisChecks::sets));
    checks.put("transactions", with(JedisChecks::transactions));
    checks.put("pipeline", with(JedisChecks::pipeline));
    checks.put("scan", with(JedisChecks::scan));
    checks.put("rate limiter", with(JedisChecks::rateLimiter));
    return Main.Subject.client("jedis", RedisClient.class, checks, JedisChecks::writer);
  }

  private static Main.Check with(Commands commands) {
    return test -> {
      try (RedisClient client = open(test.host, test.port)) {
        commands.run(test, client);
      }
    };
  }

  /** Requests have 30 s: by default 2 s, which a machine with much to do exceeds. */
  private static RedisClient open(String host, int port) {
    JedisClientConfig settings = DefaultJedisClientConfig.builder().socketTimeoutMillis(30_000).build();
    return RedisClient.builder().hostAndPort(host, port).clientConfig(settings).build();
  }

  private static Main.Writer writer(String host, int port) {
    RedisClient client = open(host, port);
    return new Main.Writer() {
      @Override
      public void set(String name, String value) {
        client.set(name, value);
      }

      @Override
      public String get(String name) {
        return client.get(name);
      }
    };
  }

  private static void strings(Test test, RedisClient client) {
    String[] names = test.names(0, 12);
    List<String> pairs = new ArrayList<>();
    List<String> values = new ArrayList<>();
    for (String name : names) {
      values.add("value " + values.size());
      pairs.addAll(List.of(name, values.get(values.size() - 1)));
    }
    Test.same("MSET", client.mset(pairs.toArray(String[]::new)), "OK");
    values.add(null);
    Test.same("MGET", client.mget(Test.with(names, test.name(50))), values);
    Test.same("MSETNX of present names", client.msetnx(test.name(60), "x", names[3], "y"), 0L);
    Test.same("GET after a refused MSETNX", client.get(test.name(60)), null);
    Test.same("MSETNX", client.msetnx(test.name(60), "x", test.name(61), "y"), 1L);
    Test.same("APPEND", client.append(names[0], " more"), 12L);
    Test.same("STRLEN", client.strlen(names[0]), 12L);
    Test.same("GETRANGE", client.getrange(names[0], -4, -1), "more");
    Test.same("SETRANGE", client.setrange(names[0], 6, "X"), 12L);
    Test.same("SET GET", client.setGet(names[0], "grün"), "value X more");
    Test.same("GETDEL", client.getDel(names[0]), "grün");
    Test.same("GET of a deleted name", client.get(names[0]), null);
    Test.same("SETEX", client.setex(names[1], 1000, "short"), "OK");
    Test.same("GETEX", client.getEx(names[1], GetExParams.getExParams().ex(500)), "short");
    Test.about("TTL", client.ttl(names[1]), 500);
    Test.same("GETEX PERSIST", client.getEx(names[1], GetExParams.getExParams().persist()), "short");
    Test.same("TTL of a persistent name", client.ttl(names[1]), -1L);
    Test.same("SETNX", client.setnx(names[1], "other"), 0L);
    Test.fails("error of another type", "WRONGTYPE", () -> client.hget(names[1], "field"));
  }

  private static void setOptions(Test test, RedisClient client) throws InterruptedException {
    String name = test.name(0);
    Test.same("SET XX of an absent name", client.set(name, "a", new SetParams().xx()), null);
    Test.same("SET NX EX", client.set(name, "a", new SetParams().nx().ex(1000)), "OK");
    Test.same("SET NX of a present name", client.set(name, "b", new SetParams().nx()), null);
    Test.same("SET KEEPTTL", client.set(name, "b", new SetParams().keepTtl()), "OK");
    Test.about("TTL after KEEPTTL", client.ttl(name), 1000);
    Test.same("SET GET XX", client.setGet(name, "c", new SetParams().xx()), "b");
    Test.same("TTL after SET", client.ttl(name), -1L);
    long atMs = System.currentTimeMillis() + 3_600_000;
    Test.same("SET EXAT", client.set(name, "d", new SetParams().exAt(atMs / 1000)), "OK");
    Test.same("EXPIRETIME", client.expireTime(name), atMs / 1000);
    Test.same("SET PXAT", client.set(name, "e", new SetParams().pxAt(atMs)), "OK");
    Test.same("PEXPIRETIME", client.pexpireTime(name), atMs);
    SetParams equal = new SetParams().condition(CompareCondition.valueEq("e"));
    Test.same("SET IFEQ", client.set(name, "f", equal), "OK");
    Test.same("SET IFEQ of another value", client.set(name, "g", equal), null);
    Test.same("SET NX GET", client.setGet(name, "h", new SetParams().nx()), "f");
    Test.same("SET PX", client.set(name, "i", new SetParams().px(30)), "OK");
    Thread.sleep(60);
    Test.same("GET of an expired name", client.get(name), null);
  }

  private static void numbers(Test test, RedisClient client) throws InterruptedException {
    for (String name : test.names(0, 12)) {
      Test.same("INCR", client.incr(name), 1L);
      Test.same("INCRBY", client.incrBy(name, 41), 42L);
      Test.same("DECR", client.decr(name), 41L);
      Test.same("DECRBY", client.decrBy(name, 31), 10L);
      Test.same("INCRBYFLOAT", client.incrByFloat(name, 0.5), 10.5);
      Test.fails("INCR of a fraction", "value is not an integer", () -> client.incr(name));
    }
    together(8, () -> {
      for (int turn = 0; turn < 25; turn++) {
        client.incr(test.name(20));
      }
    });
    Test.same("GET after 200 increments", client.get(test.name(20)), "200");
  }

  static void together(int threads, Runnable work) throws InterruptedException {
    List<Thread> all = new ArrayList<>();
    for (int number = 0; number < threads; number++) {
      Thread thread = new Thread(work);
      thread.start();
      all.add(thread);
    }
    for (Thread thread : all) {
      thread.join();
    }
  }

  private static void keys(Test test, RedisClient client) {
    String[] names = test.names(0, 12);
    for (String name : names) {
      Test.same("SET", client.set(name, name), "OK");
    }
    Test.same("EXISTS", client.exists(Test.with(names, names[0], test.name(50))), 13L);
    Test.same("TOUCH", client.touch(Test.with(names, test.name(50))), 12L);
    Test.same("RENAME", client.rename(names[0], test.name(51)), "OK");
    Test.same("GET of the new name", client.get(test.name(51)), names[0]);
    Test.same("RENAMENX", client.renamenx(names[1], names[2]), 0L);
    Test.same("COPY", client.copy(names[1], test.name(52), false), true);
    Test.same("COPY to a present name", client.copy(names[2], test.name(52), false), false);
    Test.same("COPY REPLACE", client.copy(names[2], test.name(52), true), true);
    Test.same("GET of the copy", client.get(test.name(52)), names[2]);
    Test.same("HSET", client.hset(test.name(53), "field", "value"), 1L);
    Test.same("RENAME of a hash", client.rename(test.name(53), test.name(54)), "OK");
    Test.same("TYPE", client.type(test.name(54)), "hash");
    Test.same("HGETALL", client.hgetAll(test.name(54)), Map.of("field", "value"));
    Test.fails("RENAME of an absent name", "no such key", () -> client.rename(test.name(53), test.name(54)));
    Test.same("DEL", client.del(Arrays.copyOf(names, 6)), 5L);
    Test.same("UNLINK", client.unlink(names), 6L);
    Test.same("EXISTS", client.exists(names), 0L);
  }

  private static void expiry(Test test, RedisClient client) throws InterruptedException {
    for (String name : test.names(0, 12)) {
      Test.same("EXPIRE of an absent name", client.expire(name, 100), 0L);
      Test.same("SET", client.set(name, "x"), "OK");
      Test.same("EXPIRE XX", client.expire(name, 100, ExpiryOption.XX), 0L);
      Test.same("EXPIRE NX", client.expire(name, 60, ExpiryOption.NX), 1L);
      Test.same("EXPIRE GT", client.expire(name, 3600, ExpiryOption.GT), 1L);
      Test.same("PEXPIRE LT", client.pexpire(name, 7_200_000, ExpiryOption.LT), 0L);
      Test.about("TTL", client.ttl(name), 3600);
      Test.same("PERSIST", client.persist(name), 1L);
      Test.same("PTTL", client.pttl(name), -1L);
      long atMs = System.currentTimeMillis() + 3_600_000;
      Test.same("EXPIREAT", client.expireAt(name, atMs / 1000), 1L);
      Test.same("PEXPIREAT", client.pexpireAt(name, atMs), 1L);
      Test.same("PEXPIRETIME", client.pexpireTime(name), atMs);
      Test.same("PEXPIRE", client.pexpire(name, 20), 1L);
      Thread.sleep(40);
      Test.same("TTL of an expired name", client.ttl(name), -2L);
    }
  }

  private static void hashes(Test test, RedisClient client) {
    for (String name : test.names(0, 12)) {
      Test.same("HSET", client.hset(name, Map.of("a", "1", "b", "2", "c", "3")), 3L);
      Test.same("HSETNX", client.hsetnx(name, "a", "9"), 0L);
      Test.same("HGET", client.hget(name, "a"), "1");
      Test.same("HMGET", client.hmget(name, "b", "z"), Arrays.asList("2", null));
      Test.same("HINCRBY", client.hincrBy(name, "a", 4), 5L);
      Test.same("HINCRBYFLOAT", client.hincrByFloat(name, "a", 0.25), 5.25);
      Test.same("HDEL", client.hdel(name, "b", "z"), 1L);
      Test.same("HLEN", client.hlen(name), 2L);
      Test.same("HSTRLEN", client.hstrlen(name, "a"), 4L);
      Test.same("HEXISTS", client.hexists(name, "b"), false);
      Test.same("HKEYS", client.hkeys(name), Set.of("a", "c"));
      Test.same("HVALS", Set.copyOf(client.hvals(name)), Set.of("5.25", "3"));
      Test.same("HGETALL", client.hgetAll(name), Map.of("a", "5.25", "c", "3"));
    }
    Map<String, String> large = new TreeMap<>();
    for (int field = 0; field < 2000; field++) {
      large.put("field " + field, "x");
    }
    Test.same("HSET of 2,000 fields", client.hset(test.name(20), large), 2000L);
    Set<String> seen = new HashSet<>();
    String cursor = ScanParams.SCAN_POINTER_START;
    do {
      ScanResult<Map.Entry<String, String>> page = client.hscan(test.name(20), cursor, new ScanParams().count(100));
      page.getResult().forEach(pair -> seen.add(pair.getKey()));
      cursor = page.getCursor();
    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
    Test.same("HSCAN", seen.size(), 2000);
  }

  private static void sets(Test test, RedisClient client) {
    for (String name : test.names(0, 12)) {
      Test.same("SADD", client.sadd(name, "a", "b", "c", "a"), 3L);
      Test.same("SREM", client.srem(name, "b", "z"), 1L);
      Test.same("SCARD", client.scard(name), 2L);
      Test.same("SISMEMBER", client.sismember(name, "b"), false);
      Test.same("SMISMEMBER", client.smismember(name, "a", "b"), List.of(true, false));
      Test.same("SMEMBERS", client.smembers(name), Set.of("a", "c"));
      Test.same("SSCAN", new HashSet<>(client.sscan(name, "0").getResult()), Set.of("a", "c"));
    }
  }

  private static void transactions(Test test, RedisClient client) {
    String[] names = test.names(0, 12);
    for (int round = 0; round < 5; round++) {
      try (AbstractTransaction transaction = client.multi()) {
        for (String name : names) {
          transaction.incrBy(name, 2);
        }
        transaction.sadd(test.name(51), Integer.toString(round));
        Test.same("EXEC", transaction.exec().size(), 13);
      }
    }
    for (String name : names) {
      Test.same("GET after 5 transactions", client.get(name), "10");
    }
    try (AbstractTransaction transaction = client.transaction(false)) {
      transaction.watch(names);
      client.set(names[5], "changed by another connection");
      transaction.multi();
      transaction.set(names[0], "x");
      Test.same("EXEC after a change", transaction.exec(), null);
    }
    Test.same("GET after a refused EXEC", client.get(names[0]), "10");
    try (AbstractTransaction transaction = client.transaction(false)) {
      transaction.watch(names);
      transaction.multi();
      Response<String> first = transaction.set(names[0], "by EXEC");
      Response<Long> second = transaction.incr(names[5]);
      Response<String> third = transaction.get(names[1]);
      Test.same("EXEC", transaction.exec().size(), 3);
      Test.same("SET in EXEC", first.get(), "OK");
      Test.fails("INCR in EXEC", "value is not an integer", second::get);
      Test.same("GET in EXEC", third.get(), "10");
    }
    Test.same("GET", client.get(names[0]), "by EXEC");
  }

  private static void pipeline(Test test, RedisClient client) {
    List<Response<String>> replies = new ArrayList<>();
    try (Pipeline pipeline = client.pipelined()) {
      for (int number = 0; number < 500; number++) {
        pipeline.set(test.name(number), Integer.toString(number));
        replies.add(pipeline.get(test.name(number)));
      }
      pipeline.sync();
    }
    for (int number = 0; number < 500; number++) {
      Test.same("GET in a pipeline", replies.get(number).get(), Integer.toString(number));
    }
  }

  private static void scan(Test test, RedisClient client) {
    try (Pipeline pipeline = client.pipelined()) {
      for (int number = 0; number < 300; number++) {
        pipeline.set(test.name(number), "x");
      }
      pipeline.hset(test.name(300), "field", "value");
    }
    Test.same("SCAN MATCH", scanned(test, client, null).size(), 301);
    Test.same("SCAN TYPE", scanned(test, client, "hash"), Set.of(test.name(300)));
    int found = client.keys("z:" + test.prefix + ":*").size();
    Test.holds("KEYS", found == 8 || found == 9, found);
    Test.holds("DBSIZE", client.dbSize() >= 301, client.dbSize());
  }

  private static Set<String> scanned(Test test, RedisClient client, String type) {
    Set<String> seen = new HashSet<>();
    ScanParams options = new ScanParams().match("*:" + test.prefix + ":*").count(200);
    String cursor = ScanParams.SCAN_POINTER_START;
    do {
      ScanResult<String> page = type == null ? client.scan(cursor, options) : client.scan(cursor, options, type);
      seen.addAll(page.getResult());
      cursor = page.getCursor();
    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
    return seen;
  }

  /** Counts requests in fixed windows: INCR and, for the first of a window, EXPIRE. */
  private static void rateLimiter(Test test, RedisClient client) throws InterruptedException {
    int[] allowed = new int[12];
    together(4, () -> {
      for (int request = 0; request < 60; request++) {
        int user = request % 12;
        long count = client.incr(test.name(user));
        if (count == 1) {
          client.expire(test.name(user), 3600);
        }
        synchronized (allowed) {
          allowed[user] += count <= 7 ? 1 : 0;
        }
      }
    });
    for (int user = 0; user < 12; user++) {
      Test.same("requests allowed of 20", allowed[user], 7);
      Test.holds("TTL of a window", client.ttl(test.name(user)) > 3500, client.ttl(test.name(user)));
    }
  }
}
