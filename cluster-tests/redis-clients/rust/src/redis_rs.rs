//! redis-rs: its asynchronous commands on one multiplexed connection, which the pools use too, and its blocking ones.

use crate::kill::{Reply, Writer};
use crate::{Names, Outcome, Subject, about, fails, is, same, text};
use futures::StreamExt;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{
    AsyncCommands, AsyncConnectionConfig, Client, Commands, CopyOptions, ExistenceCheck, Expiry,
    ScanOptions, SetExpiry, SetOptions, ValueComparison,
};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

pub(crate) const SUBJECT: Subject = Subject::client("redis-rs", "redis");

pub(crate) async fn check(node: &str) {
    let client = match Client::open(format!("redis://{node}/")) {
        Ok(client) => client,
        Err(error) => return SUBJECT.print("connection", "failed", &error.to_string()),
    };
    let connection = match open(&client).await {
        Ok(connection) => connection,
        Err(error) => return SUBJECT.print("connection", "failed", &error),
    };
    families(SUBJECT, connection.clone()).await;
    SUBJECT.check("transactions", transactions(connection.clone())).await;
    SUBJECT.check("WATCH", watch(&client)).await;
    SUBJECT.check("rate limiter", rate_limiter(&client)).await;
    SUBJECT.check("RESP3", resp3(node)).await;
    let blocking = tokio::task::spawn_blocking(move || blocking(&client));
    SUBJECT.check("blocking", async { blocking.await.map_err(text)? }).await;
}

/// Requests have 30 s: by default 0.5 s, which a machine with much to do exceeds.
pub(crate) fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)))
}

async fn open(client: &Client) -> Result<MultiplexedConnection, String> {
    client.get_multiplexed_async_connection_with_config(&patient()).await.map_err(text)
}

/// Runs the families of commands that any connection has.
pub(crate) async fn families(subject: Subject, connection: impl AsyncCommands + Clone) {
    subject.check("strings", strings(subject, connection.clone())).await;
    subject.check("SET options", set_options(subject, connection.clone())).await;
    subject.check("numbers", numbers(subject, connection.clone())).await;
    subject.check("keys", keys(subject, connection.clone())).await;
    subject.check("expiry", expiry(subject, connection.clone())).await;
    subject.check("hashes", hashes(subject, connection.clone())).await;
    subject.check("sets", sets(subject, connection.clone())).await;
    subject.check("pipeline", pipeline(subject, connection.clone())).await;
    subject.check("scan", scan(subject, connection)).await;
}

fn ok() -> String {
    "OK".into()
}

async fn strings(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let test = Names::new(&format!("{}-strings", subject.name));
    let names = test.names(12);
    let pairs: Vec<(String, String)> =
        names.iter().map(|it| (it.clone(), format!("value of {it}"))).collect();
    is("MSET", client.mset(&pairs), ok()).await?;
    let mut values: Vec<Option<String>> =
        pairs.iter().map(|(_, value)| Some(value.clone())).collect();
    values.push(None);
    let asked: Vec<String> = names.iter().cloned().chain([test.name(50)]).collect();
    is("MGET", client.mget(&asked), values).await?;
    let mixed = [(test.name(60), "x"), (names[3].clone(), "y")];
    is("MSETNX of present names", client.mset_nx(&mixed), false).await?;
    is("GET after a refused MSETNX", client.get(test.name(60)), None::<String>).await?;
    is("MSETNX", client.mset_nx(&[(test.name(60), "x"), (test.name(61), "y")]), true).await?;
    is("SET", client.set(&names[0], "value 0"), ok()).await?;
    is("APPEND", client.append(&names[0], " more"), 12).await?;
    is("STRLEN", client.strlen(&names[0]), 12).await?;
    is("GETRANGE", client.getrange(&names[0], -4, -1), "more".to_owned()).await?;
    is("SETRANGE", client.setrange(&names[0], 6, "X"), 12).await?;
    is("GETSET", client.getset(&names[0], &b"\x00\xff"[..]), Some("value X more".to_owned()))
        .await?;
    is("GETDEL", client.get_del(&names[0]), Some(vec![0u8, 0xff])).await?;
    is("GET of a deleted name", client.get(&names[0]), None::<String>).await?;
    is("SETEX", client.set_ex(&names[1], "short", 1000), ok()).await?;
    is("GETEX", client.get_ex(&names[1], Expiry::EX(500)), "short".to_owned()).await?;
    about("TTL", client.ttl(&names[1]), 500).await?;
    is("GETEX PERSIST", client.get_ex(&names[1], Expiry::PERSIST), "short".to_owned()).await?;
    is("TTL of a persistent name", client.ttl(&names[1]), -1).await?;
    is("SETNX", client.set_nx(&names[1], "other"), false).await?;
    fails("error of another type", client.hget::<_, _, String>(&names[1], "field"), "WRONGTYPE")
        .await
}

async fn set_options(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let name = Names::new(&format!("{}-set", subject.name)).name(0);
    let nothing = None::<String>;
    let options = SetOptions::default;
    let absent = options().conditional_set(ExistenceCheck::NX);
    let present = options().conditional_set(ExistenceCheck::XX);
    is(
        "SET XX of an absent name",
        client.set_options(&name, "a", present.clone()),
        nothing.clone(),
    )
    .await?;
    let timed = absent.clone().with_expiration(SetExpiry::EX(1000));
    is("SET NX EX", client.set_options(&name, "a", timed), ok()).await?;
    is("SET NX of a present name", client.set_options(&name, "b", absent.clone()), nothing.clone())
        .await?;
    let kept = options().with_expiration(SetExpiry::KEEPTTL);
    is("SET KEEPTTL", client.set_options(&name, "b", kept), ok()).await?;
    about("TTL after KEEPTTL", client.ttl(&name), 1000).await?;
    is("SET XX GET", client.set_options(&name, "c", present.get(true)), "b".to_owned()).await?;
    is("TTL after SET", client.ttl(&name), -1).await?;
    let at_ms = now_ms() + 3_600_000;
    let exat = options().with_expiration(SetExpiry::EXAT(at_ms / 1000));
    is("SET EXAT", client.set_options(&name, "d", exat), ok()).await?;
    is("EXPIRETIME", client.expire_time(&name), at_ms / 1000).await?;
    let pxat = options().with_expiration(SetExpiry::PXAT(at_ms));
    is("SET PXAT", client.set_options(&name, "e", pxat), ok()).await?;
    is("PEXPIRETIME", client.pexpire_time(&name), at_ms).await?;
    let equal = options().value_comparison(ValueComparison::ifeq("e"));
    is("SET IFEQ", client.set_options(&name, "f", equal.clone()), ok()).await?;
    is("SET IFEQ of another value", client.set_options(&name, "g", equal), nothing.clone()).await?;
    is("SET NX GET", client.set_options(&name, "h", absent.get(true)), "f".to_owned()).await?;
    is("DELEX of another value", client.del_ex(&name, ValueComparison::ifeq("e")), 0).await?;
    is("DELEX", client.del_ex(&name, ValueComparison::ifeq("f")), 1).await?;
    let short = options().with_expiration(SetExpiry::PX(30));
    is("SET PX", client.set_options(&name, "i", short), ok()).await?;
    tokio::time::sleep(Duration::from_millis(60)).await;
    is("GET of an expired name", client.get(&name), nothing).await
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

async fn numbers(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    for name in Names::new(&format!("{}-numbers", subject.name)).names(12) {
        is("INCRBY", client.incr(&name, 42), 42).await?;
        is("DECRBY", client.decr(&name, 32), 10).await?;
        is("INCRBYFLOAT", client.incr(&name, 0.5), 10.5).await?;
        fails(
            "INCRBY of a fraction",
            client.incr::<_, _, i64>(&name, 1),
            "value is not an integer",
        )
        .await?;
    }
    Ok(())
}

async fn keys(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let test = Names::new(&format!("{}-keys", subject.name));
    let names = test.names(12);
    for name in &names {
        is("SET", client.set(name, name), ok()).await?;
    }
    let asked: Vec<String> =
        names.iter().cloned().chain([names[0].clone(), test.name(50)]).collect();
    is("EXISTS", client.exists(&asked), 13).await?;
    is("TOUCH", redis::cmd("TOUCH").arg(&asked).query_async(&mut client), 13).await?;
    is("RENAME", client.rename(&names[0], test.name(51)), ok()).await?;
    is("GET of the new name", client.get(test.name(51)), names[0].clone()).await?;
    is("RENAMENX", client.rename_nx(&names[1], &names[2]), false).await?;
    let replace = |replace| CopyOptions::default().replace(replace);
    is("COPY", client.copy(&names[1], test.name(52), replace(false)), true).await?;
    is("COPY to a present name", client.copy(&names[2], test.name(52), replace(false)), false)
        .await?;
    is("COPY REPLACE", client.copy(&names[2], test.name(52), replace(true)), true).await?;
    is("GET of the copy", client.get(test.name(52)), names[2].clone()).await?;
    is("HSET", client.hset(test.name(53), "field", "value"), 1).await?;
    is("RENAME of a hash", client.rename(test.name(53), test.name(54)), ok()).await?;
    is("TYPE", client.key_type(test.name(54)), "hash".to_owned()).await?;
    let renamed = client.rename::<_, _, ()>(test.name(53), test.name(54));
    fails("RENAME of an absent name", renamed, "no such key").await?;
    is("DEL", client.del(&names[..6]), 5).await?;
    is("UNLINK", client.unlink(&names), 6).await?;
    is("EXISTS", client.exists(&names), 0).await
}

async fn expiry(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    for name in Names::new(&format!("{}-expiry", subject.name)).names(12) {
        is("EXPIRE of an absent name", client.expire(&name, 100), false).await?;
        is("SET", client.set(&name, "x"), ok()).await?;
        for (option, seconds, done) in
            [("XX", 100, 0), ("NX", 60, 1), ("GT", 3600, 1), ("LT", 7200, 0)]
        {
            let expire = redis::cmd("EXPIRE").arg(&name).arg(seconds).arg(option).to_owned();
            is(option, expire.query_async(&mut client), done).await?;
        }
        about("TTL", client.ttl(&name), 3600).await?;
        is("PERSIST", client.persist(&name), true).await?;
        is("PTTL", client.pttl(&name), -1).await?;
        let at_ms = i64::try_from(now_ms()).map_err(text)? + 3_600_000;
        is("EXPIREAT", client.expire_at(&name, at_ms / 1000), true).await?;
        is("PEXPIREAT", client.pexpire_at(&name, at_ms), true).await?;
        is("PEXPIRETIME", client.pexpire_time(&name), at_ms).await?;
        is("PEXPIRE", client.pexpire(&name, 20), true).await?;
        tokio::time::sleep(Duration::from_millis(40)).await;
        is("TTL of an expired name", client.ttl(&name), -2).await?;
    }
    Ok(())
}

async fn hashes(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let test = Names::new(&format!("{}-hashes", subject.name));
    for name in test.names(12) {
        is("HSET", client.hset_multiple(&name, &[("a", "1"), ("b", "2"), ("c", "3")]), ok())
            .await?;
        is("HSETNX", client.hset_nx(&name, "a", "9"), false).await?;
        is("HGET", client.hget(&name, "a"), "1".to_owned()).await?;
        let some = [Some("2".to_owned()), None];
        is("HMGET", client.hmget(&name, &["b", "z"]), some.to_vec()).await?;
        is("HINCRBY", client.hincr(&name, "a", 4), 5).await?;
        is("HINCRBYFLOAT", client.hincr(&name, "a", 0.25), 5.25).await?;
        is("HDEL", client.hdel(&name, &["b", "z"]), 1).await?;
        is("HLEN", client.hlen(&name), 2).await?;
        is("HEXISTS", client.hexists(&name, "b"), false).await?;
        is("HKEYS", client.hkeys(&name), vec!["a".to_owned(), "c".to_owned()]).await?;
        is("HVALS", client.hvals(&name), vec!["5.25".to_owned(), "3".to_owned()]).await?;
        let all = HashMap::from([("a".to_owned(), 5.25), ("c".to_owned(), 3.0)]);
        is("HGETALL", client.hgetall(&name), all).await?;
    }
    let many: Vec<(String, usize)> =
        (0..700).map(|field| (format!("field {field}"), field)).collect();
    is("HSET of 700 fields", client.hset_multiple(test.name(20), &many), ok()).await?;
    let fields = client.hscan::<_, (String, usize)>(test.name(20)).await.map_err(text)?;
    let fields: Vec<_> = fields.collect().await;
    let fields: HashSet<String> = fields.into_iter().flatten().map(|(field, _)| field).collect();
    same("fields by HSCAN", fields.len(), 700)
}

async fn sets(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let two = HashSet::from(["a".to_owned(), "c".to_owned()]);
    for name in Names::new(&format!("{}-sets", subject.name)).names(12) {
        is("SADD", client.sadd(&name, &["a", "b", "c", "a"]), 3).await?;
        is("SREM", client.srem(&name, &["b", "z"]), 1).await?;
        is("SCARD", client.scard(&name), 2).await?;
        is("SISMEMBER", client.sismember(&name, "b"), false).await?;
        is("SMISMEMBER", client.smismember(&name, &["a", "b"]), vec![true, false]).await?;
        is("SMEMBERS", client.smembers(&name), two.clone()).await?;
        let members = client.sscan::<_, String>(&name).await.map_err(text)?;
        let members: Vec<_> = members.collect().await;
        same("SSCAN", members.into_iter().flatten().collect(), two.clone())?;
    }
    Ok(())
}

async fn pipeline(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let test = Names::new(&format!("{}-pipeline", subject.name));
    let mut commands = redis::pipe();
    for number in 0..300 {
        commands.set(test.name(number), number).ignore().get(test.name(number));
    }
    is("replies", commands.query_async(&mut client), (0..300).collect::<Vec<i64>>()).await
}

async fn scan(subject: Subject, mut client: impl AsyncCommands) -> Outcome {
    let test = Names::new(&format!("{}-scan", subject.name));
    let mut commands = redis::pipe();
    for name in test.names(300) {
        commands.set(name, "x").ignore();
    }
    commands.hset(test.name(300), "field", "value").ignore();
    is("SET in a pipeline", commands.query_async(&mut client), ()).await?;
    let options = || ScanOptions::default().with_pattern(test.pattern()).with_count(200);
    let found = client.scan_options::<String>(options()).await.map_err(text)?;
    let found: Vec<_> = found.collect().await;
    let found: HashSet<String> = found.into_iter().flatten().collect();
    same("SCAN MATCH", found.len(), 301)?;
    let hashes = client.scan_options::<String>(options().with_type("hash")).await.map_err(text)?;
    let hashes: Vec<_> = hashes.collect().await;
    same("SCAN TYPE", hashes.into_iter().flatten().collect(), vec![test.name(300)])?;
    let keys: Vec<String> = client.keys(format!("z:{}:*", test.prefix)).await.map_err(text)?;
    same("KEYS", keys.len() == 8 || keys.len() == 9, true)
}

async fn transactions(mut client: MultiplexedConnection) -> Outcome {
    let test = Names::new("redis-rs-transactions");
    let names = test.names(12);
    for round in 1..=5 {
        let mut commands = redis::pipe();
        commands.atomic();
        for name in &names {
            commands.incr(name, 2);
        }
        commands.sadd(test.name(51), round).ignore();
        is("EXEC", commands.query_async(&mut client), vec![round * 2; 12]).await?;
    }
    for name in &names {
        is("GET after 5 transactions", client.get(name), 10).await?;
    }
    let mut commands = redis::pipe();
    commands.atomic().set(&names[0], "text").incr(&names[0], 1).set(&names[1], "after the error");
    let reply = commands.query_async::<Vec<redis::Value>>(&mut client);
    fails("error inside EXEC", reply, "value is not an integer").await?;
    is("GET after an error inside EXEC", client.get(&names[1]), "after the error".to_owned()).await
}

async fn watch(client: &Client) -> Outcome {
    let test = Names::new("redis-rs-watch");
    let names = test.names(4);
    let (mut first, mut second) = (open(client).await?, open(client).await?);
    is("WATCH", redis::cmd("WATCH").arg(&names).query_async(&mut first), ok()).await?;
    is("SET by another connection", second.set(&names[0], "changed"), ok()).await?;
    let mut commands = redis::pipe();
    commands.atomic().set(&names[1], "x").ignore();
    is("EXEC after a change", commands.query_async(&mut first), None::<()>).await?;
    is("GET after a refused EXEC", first.get(&names[1]), None::<String>).await?;
    let counters = [names[2].clone(), names[3].clone()];
    let workers = (0..4).map(|_| async {
        let connection = open(client).await?;
        for _ in 0..5 {
            increment(connection.clone(), &counters).await?;
        }
        Ok::<(), String>(())
    });
    futures::future::try_join_all(workers).await?;
    is("counters", first.mget(&counters), vec![20, 20]).await
}

/// Increments two numbers by a read and a guarded write, which the library repeats until no other interferes.
async fn increment(connection: MultiplexedConnection, names: &[String; 2]) -> Outcome {
    let increment =
        redis::aio::transaction_async(connection, names, |mut client, mut commands| async move {
            let value: Option<i64> = client.get(&names[0]).await?;
            let value = value.unwrap_or(0) + 1;
            commands.set(&names[0], value).ignore().set(&names[1], value).ignore();
            commands.query_async::<Option<()>>(&mut client).await
        });
    increment.await.map_err(text)
}

/// Counts requests in fixed windows: INCR and, for the first of a window, EXPIRE.
async fn rate_limiter(client: &Client) -> Outcome {
    let names = Names::new("redis-rs-limiter").names(12);
    let workers = (0..4).map(|_| async {
        let mut connection = open(client).await?;
        let mut allowed = vec![0; 12];
        for request in 0..60 {
            let name = &names[request % 12];
            let count: i64 = connection.incr(name, 1).await.map_err(text)?;
            if count == 1 {
                is("EXPIRE", connection.expire(name, 3600), true).await?;
            }
            allowed[request % 12] += i64::from(count <= 7);
        }
        Ok::<Vec<i64>, String>(allowed)
    });
    let allowed = futures::future::try_join_all(workers).await?;
    let sums = (0..12).map(|user| allowed.iter().map(|worker| worker[user]).sum::<i64>());
    same("requests allowed of 20", sums.collect(), vec![7; 12])
}

async fn resp3(node: &str) -> Outcome {
    let client = Client::open(format!("redis://{node}/?protocol=resp3")).map_err(text)?;
    let mut connection = open(&client).await?;
    for name in Names::new("redis-rs-resp3").names(12) {
        is("HSET", connection.hset(&name, "a", 1), 1).await?;
        is("HGETALL", connection.hgetall(&name), HashMap::from([("a".to_owned(), 1)])).await?;
        is("HGET of an absent field", connection.hget(&name, "z"), None::<String>).await?;
    }
    Ok(())
}

fn blocking(client: &Client) -> Outcome {
    let names = Names::new("redis-rs-blocking").names(12);
    let mut connection = client.get_connection().map_err(text)?;
    for name in &names {
        connection.set::<_, _, ()>(name, "1").map_err(text)?;
    }
    let values: Vec<i64> = connection.mget(&names).map_err(text)?;
    same("MGET", values, vec![1; 12])?;
    let sum = redis::transaction(&mut connection, &names, |client, commands| {
        let value: i64 = client.get(&names[0])?;
        commands.set(&names[0], value + 1).ignore().incr(&names[5], 10);
        commands.query::<Option<Vec<i64>>>(client)
    });
    same("EXEC", sum.map_err(text)?, vec![11])
}

struct Managed(ConnectionManager);

/// Opens a connection that connects again by itself, with the times of its default.
pub(crate) async fn writer(node: &str) -> Result<Box<dyn Writer>, String> {
    let client = Client::open(format!("redis://{node}/")).map_err(text)?;
    Ok(Box::new(Managed(client.get_connection_manager().await.map_err(text)?)))
}

impl Writer for Managed {
    fn set(&mut self, name: String, value: String) -> Reply<'_, ()> {
        Box::pin(async move { self.0.set(name, value).await.map_err(text) })
    }

    fn get(&mut self, name: String) -> Reply<'_, Option<String>> {
        Box::pin(async move { self.0.get(name).await.map_err(text) })
    }
}
