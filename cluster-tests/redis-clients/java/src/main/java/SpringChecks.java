import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.cache.Cache;
import org.springframework.data.redis.cache.RedisCache;
import org.springframework.data.redis.cache.RedisCacheConfiguration;
import org.springframework.data.redis.cache.RedisCacheManager;
import org.springframework.data.redis.cache.RedisCacheWriter;
import org.springframework.data.redis.cache.RedisCacheWriter.RedisCacheWriterConfigurer;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.RedisTemplate;
import org.springframework.data.redis.serializer.StringRedisSerializer;
import org.springframework.session.Session;
import org.springframework.session.SessionRepository;
import org.springframework.session.data.redis.RedisIndexedSessionRepository;
import org.springframework.session.data.redis.RedisSessionRepository;

/** Spring Session, the cache of Spring Data Redis, and ShedLock, on Lettuce. */
final class SpringChecks {
  private interface Commands {
    void run(Test test, LettuceConnectionFactory connections) throws Exception;
  }

  static List<Main.Subject> subjects() {
    Map<String, Main.Check> sessions = new LinkedHashMap<>();
    sessions.put("session store", with(SpringChecks::sessions));
    sessions.put("indexed session store", with(SpringChecks::indexedSessions));
    Map<String, Main.Check> caches = new LinkedHashMap<>();
    // Without immediate writes a put, evict or clear returns before it took effect.
    caches.put("cache", with((test, it) ->
        cache(test, RedisCacheWriter.create(it, RedisCacheWriterConfigurer::immediateWrites))));
    caches.put("locking cache", with((test, it) ->
        cache(test, RedisCacheWriter.create(it, writer -> writer.immediateWrites().enableLocking()))));
    caches.put("cache with later writes", with(SpringChecks::laterWrites));
    Map<String, Main.Check> locks = new LinkedHashMap<>();
    locks.put("lock", with(SpringChecks::locks));
    return List.of(
        Main.Subject.framework("spring-session-data-redis", RedisSessionRepository.class, sessions),
        Main.Subject.framework("spring-data-redis", RedisCache.class, caches),
        Main.Subject.framework("shedlock-provider-redis-spring", RedisLockProvider.class, locks));
  }

  private static Main.Check with(Commands commands) {
    return test -> {
      LettuceConnectionFactory connections = new LettuceConnectionFactory(test.host, test.port);
      connections.afterPropertiesSet();
      connections.start();
      try {
        commands.run(test, connections);
      } finally {
        connections.destroy();
      }
    };
  }

  private static RedisTemplate<String, Object> template(LettuceConnectionFactory connections) {
    RedisTemplate<String, Object> template = new RedisTemplate<>();
    template.setKeySerializer(new StringRedisSerializer());
    template.setHashKeySerializer(new StringRedisSerializer());
    template.setConnectionFactory(connections);
    template.afterPropertiesSet();
    return template;
  }

  private static void sessions(Test test, LettuceConnectionFactory connections) {
    RedisSessionRepository plain = new RedisSessionRepository(template(connections));
    for (int user = 0; user < 20; user++) {
      login(plain);
    }
    for (String name : test.names(0, 6)) {
      RedisSessionRepository other = new RedisSessionRepository(template(connections));
      other.setRedisKeyNamespace(name);
      login(other);
    }
  }

  /** A login changes the ID of the session, by RENAME: the session must be found by the new one alone. */
  private static <S extends Session> void login(SessionRepository<S> repository) {
    S session = repository.createSession();
    session.setAttribute("cart", new ArrayList<>(List.of("apple", "pear")));
    session.setMaxInactiveInterval(Duration.ofMinutes(10));
    repository.save(session);
    String anonymous = session.getId();
    S found = repository.findById(anonymous);
    Test.same("attribute", found.getAttribute("cart"), List.of("apple", "pear"));
    found.setAttribute("user", "ada");
    String changed = found.changeSessionId();
    repository.save(found);
    Test.same("session by its former ID", repository.findById(anonymous), null);
    S after = repository.findById(changed);
    Test.same("user", after.getAttribute("user"), "ada");
    Test.same("attribute after the change", after.getAttribute("cart"), List.of("apple", "pear"));
    Test.same("interval", after.getMaxInactiveInterval(), Duration.ofMinutes(10));
    after.removeAttribute("cart");
    after.setLastAccessedTime(Instant.now());
    repository.save(after);
    Test.same("removed attribute", repository.findById(changed).getAttribute("cart"), null);
    repository.deleteById(changed);
    Test.same("deleted session", repository.findById(changed), null);
  }

  private static void indexedSessions(Test test, LettuceConnectionFactory connections) throws Exception {
    RedisIndexedSessionRepository repository = new RedisIndexedSessionRepository(template(connections));
    try {
      login(repository);
    } catch (Exception failure) {
      String text = Main.textOf(failure);
      if (text.contains("unknown command")) {
        throw new Main.Skip(text);
      }
      throw failure;
    }
  }

  private static RedisCacheManager caches(RedisCacheWriter writer) {
    RedisCacheConfiguration settings = RedisCacheConfiguration.defaultCacheConfig().entryTtl(Duration.ofHours(1));
    RedisCacheManager caches = RedisCacheManager.builder(writer).cacheDefaults(settings).build();
    caches.afterPropertiesSet();
    return caches;
  }

  /** The default of the library: the effects of writes are awaited. */
  private static void laterWrites(Test test, LettuceConnectionFactory connections) throws InterruptedException {
    RedisCacheManager caches = caches(RedisCacheWriter.nonLockingRedisCacheWriter(connections));
    for (String name : test.names(0, 6)) {
      Cache cache = caches.getCache(name);
      cache.put("first", "value");
      cache.put("second", "value");
      await("put", () -> cache.get("first") != null && cache.get("second") != null);
      cache.evict("first");
      await("evict", () -> cache.get("first") == null);
      Test.same("get", cache.get("second").get(), "value");
      cache.clear();
      await("clear", () -> cache.get("second") == null);
    }
  }

  private static void await(String what, BooleanSupplier condition) throws InterruptedException {
    for (int turn = 0; turn < 1000; turn++) {
      if (condition.getAsBoolean()) {
        return;
      }
      Thread.sleep(10);
    }
    throw new AssertionError(what + " took no effect within 10 s");
  }

  private static void cache(Test test, RedisCacheWriter writer) {
    RedisCacheManager caches = caches(writer);
    for (String name : test.names(0, 6)) {
      Cache cache = caches.getCache(name);
      for (int number = 0; number < 5; number++) {
        cache.put("key " + number, "value " + number);
      }
      Test.same("get", cache.get("key 3", String.class), "value 3");
      Test.same("putIfAbsent", cache.putIfAbsent("key 3", "other").get(), "value 3");
      Test.same("putIfAbsent of an absent key", cache.putIfAbsent("key 9", "new"), null);
      Test.same("get", cache.get("key 9").get(), "new");
      AtomicInteger loads = new AtomicInteger();
      for (int turn = 0; turn < 2; turn++) {
        Test.same("get with a loader", cache.get("key 10", () -> "load " + loads.incrementAndGet()), "load 1");
      }
      cache.evict("key 0");
      Test.same("get of an evicted key", cache.get("key 0"), null);
      Test.same("evictIfPresent", cache.evictIfPresent("key 0"), false);
    }
    Cache first = caches.getCache(test.name(0));
    first.clear();
    Test.same("get after clear", first.get("key 3"), null);
    Test.same("get from another cache", caches.getCache(test.name(1)).get("key 3").get(), "value 3");
  }

  private static void locks(Test test, LettuceConnectionFactory connections) throws InterruptedException {
    for (String name : test.names(0, 12)) {
      RedisLockProvider locks = new RedisLockProvider.Builder(connections).keyPrefix(name).build();
      Optional<SimpleLock> held = locks.lock(job(Duration.ofMinutes(1), Duration.ZERO));
      Test.same("lock of a free name", held.isPresent(), true);
      Test.same("lock of a held name", locks.lock(job(Duration.ofMinutes(1), Duration.ZERO)).isPresent(), false);
      Optional<SimpleLock> extended = held.get().extend(Duration.ofMinutes(2), Duration.ZERO);
      Test.same("extend", extended.isPresent(), true);
      extended.get().unlock();
      Optional<SimpleLock> again = locks.lock(job(Duration.ofMinutes(1), Duration.ofMillis(300)));
      Test.same("lock after unlock", again.isPresent(), true);
      again.get().unlock();
      Test.same("lock within lockAtLeastFor", locks.lock(job(Duration.ofMinutes(1), Duration.ZERO)).isPresent(), false);
      Thread.sleep(400);
      Test.same("lock after lockAtLeastFor", locks.lock(job(Duration.ofMinutes(1), Duration.ZERO)).isPresent(), true);
    }
  }

  private static LockConfiguration job(Duration atMost, Duration atLeast) {
    return new LockConfiguration(Instant.now(), "job", atMost, atLeast);
  }
}
