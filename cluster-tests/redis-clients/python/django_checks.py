"""Django: its own cache of Redis with sessions and a login, django-redis and django-ratelimit."""

import threading
import time

import django
from django.conf import settings

from results import Checks, equal, names, true

CHECKS = Checks()


def configure(cluster):
    """Configures Django once: `default` is its own cache, `other` that of django-redis."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="of a test",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="django_site",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
        CACHES={
            # The first address is written to, the others are read from.
            "default": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": [cluster.url(at) for at in range(len(cluster.nodes))],
            },
            "other": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": cluster.url(1, database=1),
            },
            "flushed": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": cluster.url(2, database=2),
            },
        },
    )
    django.setup()


def cache(cluster, alias="default"):
    from django.core.cache import caches

    configure(cluster)
    return caches[alias]


@CHECKS.of("Django", "session store")
def sessions(cluster):
    """Requests of one browser: a counter in the session, a login, which changes its id, and a logout."""
    configure(cluster)
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    User.objects.create_user("someone", password="secret")
    for _ in range(12):
        browser = Client()
        equal([browser.get("/count").content for _ in range(3)], [b"1", b"2", b"3"])
        before = browser.cookies["sessionid"].value
        equal(browser.get("/login").content, b"someone")
        after = browser.cookies["sessionid"].value
        true(before != after, "a login changes the id of the session")
        equal(browser.get("/user").content, b"someone 3")
        browser.cookies["sessionid"] = before
        equal(browser.get("/user").content, b" 0")
        browser.cookies["sessionid"] = after
        browser.get("/logout")
        browser.cookies["sessionid"] = after
        equal(browser.get("/user").content, b" 0")


@CHECKS.of("Django", "cache")
def own_cache(cluster):
    store = cache(cluster)
    exercise(store, "django")
    flushed = cache(cluster, "flushed")
    flushed.set("a", 1)
    flushed.clear()
    equal(flushed.get("a"), None)


def exercise(store, what):
    """Calls that caches of Django have in common, over names of all regions."""
    for at, name in enumerate(names(what)):
        store.set(name, {"at": at}, timeout=60)
        equal(store.get(name), {"at": at})
        equal(store.add(name, "other"), False)
        equal(store.touch(name, 100), True)
        equal(store.has_key(name), True)
        store.set(name, at)
        store.delete(name)
        equal(store.get(name, "none"), "none")
        equal(store.add(name, "first", timeout=1), True)
    many = {name: [at, "value"] for at, name in enumerate(names(f"{what}-many"))}
    # django-redis returns nothing, Django the names that failed.
    true(not store.set_many(many, timeout=60), "set_many")
    equal(store.get_many([*many, "absent"]), many)
    store.delete_many(many)
    equal(store.get_many(many), {})
    equal(store.get_or_set("m:computed", lambda: 7, timeout=5), 7)
    store.set_many({name: 1 for name in many})
    equal(store.get_many(many), {name: 1 for name in many})
    store.delete_many(many)
    time.sleep(1.1)
    equal(store.get(names(what)[0]), None)


@CHECKS.of("Django", "counters")
def counters(cluster):
    store = cache(cluster)
    for name in names("django-count"):
        store.set(name, 1, timeout=60)
        threads = [threading.Thread(target=store.incr, args=(name,)) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        equal(store.decr(name), 4)
        store.delete(name)


@CHECKS.of("django-redis", "cache")
def django_redis(cluster):
    store = cache(cluster, "other")
    exercise(store, "dj")
    store.set("p:dj", 1, timeout=50)
    true(0 < store.ttl("p:dj") <= 50, "the expiry is kept")
    equal(store.persist("p:dj"), True)
    equal(store.expire("p:dj", 30), True)
    store.set_many(dict.fromkeys(names("pattern"), 1))
    equal(set(store.keys("*:pattern:*")), set(names("pattern")))
    equal(set(store.iter_keys("*:pattern:*")), set(names("pattern")))
    equal(store.delete_pattern("*:pattern:*"), len(names("pattern")))


@CHECKS.of("django-redis", "counters")
def django_redis_counters(cluster):
    store = cache(cluster, "other")
    for name in names("dj-count"):
        store.set(name, 5, timeout=60)
        equal(store.incr(name, 3), 8)
        equal(store.decr(name), 7)
        equal(store.get(name), 7)
        true(store.ttl(name) > 0, "the expiry is kept")
        store.delete(name)


@CHECKS.of("django-redis", "lock")
def django_redis_lock(cluster):
    store = cache(cluster, "other")
    for name in names("dj-lock"):
        with store.lock(name, timeout=10):
            equal(store.lock(name, timeout=10).acquire(blocking=False), False)


@CHECKS.of("django-ratelimit", "rate limiter")
def django_ratelimit(cluster):
    configure(cluster)
    from django.test import Client

    for name in names("ratelimit"):
        answers = [Client().get("/limited", {"who": f"{name}:{time.time()}"}).status_code]
        equal(answers, [200])
        answers = [Client().get("/limited", {"who": name}).status_code for _ in range(5)]
        equal(answers, [200, 200, 200, 403, 403])
