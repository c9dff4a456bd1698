import io.lettuce.core.CompareCondition;
import io.lettuce.core.CopyArgs;
import io.lettuce.core.ExpireArgs;
import io.lettuce.core.GetExArgs;
import io.lettuce.core.KeyScanArgs;
import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.KeyValue;
import io.lettuce.core.MapScanCursor;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanCursor;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** Lettuce. */
final class LettuceChecks {
  private interface Commands {
    void run(Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
        throws Exception;
  }

  static Main.Subject subject() {
    Map<String, Main.Check> checks = new LinkedHashMap<>();
    checks.put("strings", with(LettuceChecks::strings));
    checks.put("SET options", with(LettuceChecks::setOptions));
    checks.put("numbers", with(LettuceChecks::numbers));
    checks.put("keys", with(LettuceChecks::keys));
    checks.put("expiry", with(LettuceChecks::expiry));
    checks.put("hashes", with(LettuceChecks::hashes));
    checks.put("sets", with(LettuceChecks::sets));
    checks.put("transactions", with(LettuceChecks::transactions));
    checks.put("pipeline", with(LettuceChecks::pipeline));
    checks.put("scan", with(LettuceChecks::scan));
    return Main.Subject.client("lettuce", RedisClient.class, checks, LettuceChecks::writer);
  }

  private static Main.Check with(Commands commands) {
    return test -> {
      RedisClient client = RedisClient.create(RedisURI.create(test.host, test.port));
      try (StatefulRedisConnection<String, String> first = client.connect();
          StatefulRedisConnection<String, String> second = client.connect()) {
        commands.run(test, first.sync(), second);
      } finally {
        client.shutdownAsync();
      }
    };
  }

  private static Main.Writer writer(String host, int port) {
    RedisCommands<String, String> client = RedisClient.create(RedisURI.create(host, port)).connect().sync();
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

  private static void strings(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other) {
    String[] names = test.names(0, 12);
    Map<String, String> pairs = new HashMap<>();
    for (String name : names) {
      pairs.put(name, "value of " + name);
    }
    Test.same("MSET", client.mset(pairs), "OK");
    for (KeyValue<String, String> pair : client.mget(Test.with(names, test.name(50)))) {
      Test.same("MGET", pair.getValueOrElse(null), pairs.get(pair.getKey()));
    }
    Test.same("MSETNX of present names", client.msetnx(Map.of(test.name(60), "x", names[3], "y")), false);
    Test.same("GET after a refused MSETNX", client.get(test.name(60)), null);
    Test.same("MSETNX", client.msetnx(Map.of(test.name(60), "x", test.name(61), "y")), true);
    Test.same("SET", client.set(names[0], "value 0"), "OK");
    Test.same("APPEND", client.append(names[0], " more"), 12L);
    Test.same("STRLEN", client.strlen(names[0]), 12L);
    Test.same("GETRANGE", client.getrange(names[0], -4, -1), "more");
    Test.same("SETRANGE", client.setrange(names[0], 6, "X"), 12L);
    Test.same("GETSET", client.getset(names[0], "grün"), "value X more");
    Test.same("GETDEL", client.getdel(names[0]), "grün");
    Test.same("GET of a deleted name", client.get(names[0]), null);
    Test.same("SETEX", client.setex(names[1], 1000, "short"), "OK");
    Test.same("GETEX", client.getex(names[1], GetExArgs.Builder.ex(500)), "short");
    Test.about("TTL", client.ttl(names[1]), 500);
    Test.same("GETEX PERSIST", client.getex(names[1], GetExArgs.Builder.persist()), "short");
    Test.same("TTL of a persistent name", client.ttl(names[1]), -1L);
    Test.same("SETNX", client.setnx(names[1], "other"), false);
    Test.fails("error of another type", "WRONGTYPE", () -> client.hget(names[1], "field"));
  }

  private static void setOptions(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
      throws InterruptedException {
    String name = test.name(0);
    Test.same("SET XX of an absent name", client.set(name, "a", SetArgs.Builder.xx()), null);
    Test.same("SET NX EX", client.set(name, "a", SetArgs.Builder.nx().ex(1000)), "OK");
    Test.same("SET NX of a present name", client.set(name, "b", SetArgs.Builder.nx()), null);
    Test.same("SET KEEPTTL", client.set(name, "b", SetArgs.Builder.keepttl()), "OK");
    Test.about("TTL after KEEPTTL", client.ttl(name), 1000);
    Test.same("SET GET XX", client.setGet(name, "c", SetArgs.Builder.xx()), "b");
    Test.same("TTL after SET", client.ttl(name), -1L);
    long atMs = System.currentTimeMillis() + 3_600_000;
    Test.same("SET EXAT", client.set(name, "d", new SetArgs().exAt(atMs / 1000)), "OK");
    Test.same("EXPIRETIME", client.expiretime(name), atMs / 1000);
    Test.same("SET PXAT", client.set(name, "e", new SetArgs().pxAt(atMs)), "OK");
    Test.same("PEXPIRETIME", client.pexpiretime(name), atMs);
    Test.same("DELEX of another value", client.delex(name, CompareCondition.valueEq("x")), 0L);
    Test.same("SET NX GET", client.setGet(name, "h", SetArgs.Builder.nx()), "e");
    Test.same("DELEX", client.delex(name, CompareCondition.valueEq("e")), 1L);
    Test.same("SET PX", client.set(name, "i", SetArgs.Builder.px(30)), "OK");
    Thread.sleep(60);
    Test.same("GET of an expired name", client.get(name), null);
  }

  private static void numbers(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
      throws InterruptedException {
    for (String name : test.names(0, 12)) {
      Test.same("INCR", client.incr(name), 1L);
      Test.same("INCRBY", client.incrby(name, 41), 42L);
      Test.same("DECR", client.decr(name), 41L);
      Test.same("DECRBY", client.decrby(name, 31), 10L);
      Test.same("INCRBYFLOAT", client.incrbyfloat(name, 0.5), 10.5);
      Test.fails("INCR of a fraction", "value is not an integer", () -> client.incr(name));
    }
    JedisChecks.together(8, () -> {
      for (int turn = 0; turn < 25; turn++) {
        other.sync().incr(test.name(20));
      }
    });
    Test.same("GET after 200 increments", client.get(test.name(20)), "200");
  }

  private static void keys(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other) {
    String[] names = test.names(0, 12);
    for (String name : names) {
      Test.same("SET", client.set(name, name), "OK");
    }
    Test.same("EXISTS", client.exists(Test.with(names, names[0], test.name(50))), 13L);
    Test.same("TOUCH", client.touch(Test.with(names, test.name(50))), 12L);
    Test.same("RENAME", client.rename(names[0], test.name(51)), "OK");
    Test.same("GET of the new name", client.get(test.name(51)), names[0]);
    Test.same("RENAMENX", client.renamenx(names[1], names[2]), false);
    Test.same("COPY", client.copy(names[1], test.name(52)), true);
    Test.same("COPY to a present name", client.copy(names[2], test.name(52)), false);
    Test.same("COPY REPLACE", client.copy(names[2], test.name(52), CopyArgs.Builder.replace(true)), true);
    Test.same("GET of the copy", client.get(test.name(52)), names[2]);
    Test.same("SADD", client.sadd(test.name(53), "member"), 1L);
    Test.same("RENAME of a set", client.rename(test.name(53), test.name(54)), "OK");
    Test.same("TYPE", client.type(test.name(54)), "set");
    Test.same("SMEMBERS", client.smembers(test.name(54)), Set.of("member"));
    Test.fails("RENAME of an absent name", "no such key", () -> client.rename(test.name(53), test.name(54)));
    Test.same("DEL", client.del(Arrays.copyOf(names, 6)), 5L);
    Test.same("UNLINK", client.unlink(names), 6L);
    Test.same("EXISTS", client.exists(names), 0L);
  }

  private static void expiry(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
      throws InterruptedException {
    for (String name : test.names(0, 12)) {
      Test.same("EXPIRE of an absent name", client.expire(name, 100), false);
      Test.same("SET", client.set(name, "x"), "OK");
      Test.same("EXPIRE XX", client.expire(name, 100, ExpireArgs.Builder.xx()), false);
      Test.same("EXPIRE NX", client.expire(name, 60, ExpireArgs.Builder.nx()), true);
      Test.same("EXPIRE GT", client.expire(name, 3600, ExpireArgs.Builder.gt()), true);
      Test.same("PEXPIRE LT", client.pexpire(name, 7_200_000, ExpireArgs.Builder.lt()), false);
      Test.about("TTL", client.ttl(name), 3600);
      Test.same("PERSIST", client.persist(name), true);
      Test.same("PTTL", client.pttl(name), -1L);
      long atMs = System.currentTimeMillis() + 3_600_000;
      Test.same("EXPIREAT", client.expireat(name, atMs / 1000), true);
      Test.same("PEXPIREAT", client.pexpireat(name, atMs), true);
      Test.same("PEXPIRETIME", client.pexpiretime(name), atMs);
      Test.same("PEXPIRE", client.pexpire(name, 20), true);
      Thread.sleep(40);
      Test.same("TTL of an expired name", client.ttl(name), -2L);
    }
  }

  private static void hashes(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other) {
    for (String name : test.names(0, 12)) {
      Test.same("HSET", client.hset(name, Map.of("a", "1", "b", "2", "c", "3")), 3L);
      Test.same("HSETNX", client.hsetnx(name, "a", "9"), false);
      Test.same("HGET", client.hget(name, "a"), "1");
      Test.same("HMGET", client.hmget(name, "b", "z"), List.of(KeyValue.just("b", "2"), KeyValue.empty("z")));
      Test.same("HINCRBY", client.hincrby(name, "a", 4), 5L);
      Test.same("HINCRBYFLOAT", client.hincrbyfloat(name, "a", 0.25), 5.25);
      Test.same("HDEL", client.hdel(name, "b", "z"), 1L);
      Test.same("HLEN", client.hlen(name), 2L);
      Test.same("HSTRLEN", client.hstrlen(name, "a"), 4L);
      Test.same("HEXISTS", client.hexists(name, "b"), false);
      Test.same("HKEYS", Set.copyOf(client.hkeys(name)), Set.of("a", "c"));
      Test.same("HVALS", Set.copyOf(client.hvals(name)), Set.of("5.25", "3"));
      Test.same("HGETALL", client.hgetall(name), Map.of("a", "5.25", "c", "3"));
    }
    Map<String, String> large = new HashMap<>();
    for (int field = 0; field < 700; field++) {
      large.put("field " + field, "x");
    }
    Test.same("HSET of 700 fields", client.hset(test.name(20), large), 700L);
    Set<String> seen = new HashSet<>();
    ScanCursor cursor = ScanCursor.INITIAL;
    while (!cursor.isFinished()) {
      MapScanCursor<String, String> page = client.hscan(test.name(20), cursor, ScanArgs.Builder.limit(100));
      seen.addAll(page.getMap().keySet());
      cursor = page;
    }
    Test.same("HSCAN", seen, large.keySet());
  }

  private static void sets(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other) {
    for (String name : test.names(0, 12)) {
      Test.same("SADD", client.sadd(name, "a", "b", "c", "a"), 3L);
      Test.same("SREM", client.srem(name, "b", "z"), 1L);
      Test.same("SCARD", client.scard(name), 2L);
      Test.same("SISMEMBER", client.sismember(name, "b"), false);
      Test.same("SMISMEMBER", client.smismember(name, "a", "b"), List.of(true, false));
      Test.same("SMEMBERS", client.smembers(name), Set.of("a", "c"));
      Test.same("SSCAN", new HashSet<>(client.sscan(name).getValues()), Set.of("a", "c"));
    }
  }

  private static void transactions(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other) {
    String[] names = test.names(0, 12);
    for (int round = 0; round < 5; round++) {
      client.multi();
      for (String name : names) {
        client.incrby(name, 2);
      }
      client.sadd(test.name(51), Integer.toString(round));
      Test.same("EXEC", client.exec().size(), 13);
    }
    for (String name : names) {
      Test.same("GET after 5 transactions", client.get(name), "10");
    }
    client.watch(names);
    other.sync().set(names[5], "changed by another connection");
    client.multi();
    client.set(names[0], "x");
    Test.same("EXEC after a change is discarded", client.exec().wasDiscarded(), true);
    Test.same("GET after a refused EXEC", client.get(names[0]), "10");
    client.watch(names);
    client.multi();
    client.set(names[0], "by EXEC");
    client.incr(names[5]);
    client.get(names[1]);
    TransactionResult replies = client.exec();
    Test.same("SET in EXEC", replies.get(0), "OK");
    Test.holds("INCR in EXEC", replies.get(1).toString().contains("value is not an integer"), replies.get(1));
    Test.same("GET in EXEC", replies.get(2), "10");
    Test.same("GET", client.get(names[0]), "by EXEC");
  }

  private static void pipeline(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
      throws Exception {
    RedisAsyncCommands<String, String> commands = other.async();
    List<RedisFuture<String>> replies = new ArrayList<>();
    for (int number = 0; number < 500; number++) {
      commands.set(test.name(number), Integer.toString(number));
      replies.add(commands.get(test.name(number)));
    }
    for (int number = 0; number < 500; number++) {
      Test.same("GET in a pipeline", replies.get(number).get(30, TimeUnit.SECONDS), Integer.toString(number));
    }
  }

  private static void scan(
      Test test, RedisCommands<String, String> client, StatefulRedisConnection<String, String> other)
      throws Exception {
    List<RedisFuture<String>> replies = new ArrayList<>();
    for (int number = 0; number < 300; number++) {
      replies.add(other.async().set(test.name(number), "x"));
    }
    for (RedisFuture<String> reply : replies) {
      Test.same("SET", reply.get(30, TimeUnit.SECONDS), "OK");
    }
    client.hset(test.name(300), "field", "value");
    String pattern = "*:" + test.prefix + ":*";
    Test.same("SCAN MATCH", scanned(client, KeyScanArgs.Builder.matches(pattern).limit(200)).size(), 301);
    Set<String> hashes = scanned(client, KeyScanArgs.Builder.type("hash").match(pattern).limit(1000));
    Test.same("SCAN TYPE", hashes, Set.of(test.name(300)));
    Test.holds("DBSIZE", client.dbsize() >= 301, client.dbsize());
  }

  private static Set<String> scanned(RedisCommands<String, String> client, ScanArgs options) {
    Set<String> seen = new HashSet<>();
    ScanCursor cursor = ScanCursor.INITIAL;
    while (!cursor.isFinished()) {
      KeyScanCursor<String> page = client.scan(cursor, options);
      seen.addAll(page.getKeys());
      cursor = page;
    }
    return seen;
  }
}
