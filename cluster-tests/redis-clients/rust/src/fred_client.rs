//! Fred.

use crate::kill::{Reply, Writer};
use crate::redis_rs::now_ms;
use crate::{Names, Outcome, Subject, about, fails, is, same, text};
use fred::prelude::*;
use fred::types::RespVersion;
use fred::types::scan::{ScanType, Scanner};
use fred::types::{ExpireOptions, Map, SetOptions, Value};
use futures::TryStreamExt;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

pub(crate) const SUBJECT: Subject = Subject::client("fred", "fred");

async fn open(node: &str) -> Result<Client, String> {
    let settings = Config::from_url(&format!("redis://{node}/")).map_err(text)?;
    let client = Builder::from_config(settings).build().map_err(text)?;
    client.init().await.map_err(text)?;
    Ok(client)
}

pub(crate) async fn check(node: &str) {
    let client = match open(node).await {
        Ok(client) => client,
        Err(error) => return SUBJECT.print("connection", "failed", &error),
    };
    SUBJECT.check("strings", strings(&client)).await;
    SUBJECT.check("SET options", set_options(&client)).await;
    SUBJECT.check("numbers", numbers(&client)).await;
    SUBJECT.check("keys", keys(&client)).await;
    SUBJECT.check("expiry", expiry(&client)).await;
    SUBJECT.check("hashes", hashes(&client)).await;
    SUBJECT.check("sets", sets(&client)).await;
    SUBJECT.check("transactions", transactions(&client, node)).await;
    SUBJECT.check("pipeline", pipeline(&client)).await;
    SUBJECT.check("scan", scan(&client)).await;
    SUBJECT.check("RESP3", resp3(node)).await;
}

fn ok() -> String {
    "OK".into()
}

fn pairs(pairs: &[(String, String)]) -> HashMap<String, String> {
    pairs.iter().cloned().collect()
}

async fn strings(client: &Client) -> Outcome {
    let test = Names::new("fred-strings");
    let names = test.names(12);
    let all: Vec<(String, String)> =
        names.iter().map(|it| (it.clone(), format!("value of {it}"))).collect();
    is("MSET", client.mset(pairs(&all)), ()).await?;
    let mut values: Vec<Option<String>> =
        all.iter().map(|(_, value)| Some(value.clone())).collect();
    values.push(None);
    let asked: Vec<String> = names.iter().cloned().chain([test.name(50)]).collect();
    is("MGET", client.mget(asked), values).await?;
    let mixed = [(test.name(60), "x".to_owned()), (names[3].clone(), "y".to_owned())];
    is("MSETNX of present names", client.msetnx(pairs(&mixed)), 0).await?;
    is("GET after a refused MSETNX", client.get(test.name(60)), None::<String>).await?;
    is("SET", client.set(&names[0], "value 0", None, None, false), ok()).await?;
    is("APPEND", client.append(&names[0], " more"), 12).await?;
    is("STRLEN", client.strlen(&names[0]), 12).await?;
    is("GETRANGE", client.getrange(&names[0], 8, 11), "more".to_owned()).await?;
    is("SETRANGE", client.setrange(&names[0], 6, "X"), 12).await?;
    is("GETSET", client.getset(&names[0], "grün"), "value X more".to_owned()).await?;
    is("GETDEL", client.getdel(&names[0]), "grün".to_owned()).await?;
    is("GET of a deleted name", client.get(&names[0]), None::<String>).await?;
    fails("error of another type", client.hget::<String, _, _>(&names[1], "field"), "WRONGTYPE")
        .await
}

async fn set_options(client: &Client) -> Outcome {
    let name = Names::new("fred-set").name(0);
    let nothing = None::<String>;
    let set = |value, expiry, options, get| client.set(&name, value, expiry, options, get);
    let (absent, present) = (Some(SetOptions::NX), Some(SetOptions::XX));
    is("SET XX of an absent name", set("a", None, present.clone(), false), nothing.clone()).await?;
    let timed = Some(Expiration::EX(1000));
    is("SET NX EX", set("a", timed, absent.clone(), false), Some(ok())).await?;
    is("SET NX of a present name", set("b", None, absent.clone(), false), nothing.clone()).await?;
    is("SET KEEPTTL", set("b", Some(Expiration::KEEPTTL), None, false), Some(ok())).await?;
    about("TTL after KEEPTTL", client.ttl(&name), 1000).await?;
    is("SET XX GET", set("c", None, present, true), Some("b".to_owned())).await?;
    is("TTL after SET", client.ttl(&name), -1).await?;
    let at_ms = i64::try_from(now_ms()).map_err(text)? + 3_600_000;
    is("SET EXAT", set("d", Some(Expiration::EXAT(at_ms / 1000)), None, false), Some(ok())).await?;
    is("EXPIRETIME", client.expire_time(&name), at_ms / 1000).await?;
    is("SET PXAT", set("e", Some(Expiration::PXAT(at_ms)), None, false), Some(ok())).await?;
    is("PEXPIRETIME", client.pexpire_time(&name), at_ms).await?;
    is("SET NX GET", set("h", None, absent, true), Some("e".to_owned())).await?;
    is("SET PX", set("i", Some(Expiration::PX(30)), None, false), Some(ok())).await?;
    tokio::time::sleep(Duration::from_millis(60)).await;
    is("GET of an expired name", client.get(&name), nothing).await
}

async fn numbers(client: &Client) -> Outcome {
    let test = Names::new("fred-numbers");
    for name in test.names(12) {
        is("INCR", client.incr(&name), 1).await?;
        is("INCRBY", client.incr_by(&name, 41), 42).await?;
        is("DECR", client.decr(&name), 41).await?;
        is("DECRBY", client.decr_by(&name, 31), 10).await?;
        is("INCRBYFLOAT", client.incr_by_float(&name, 0.5), 10.5).await?;
        fails("INCR of a fraction", client.incr::<i64, _>(&name), "value is not an integer")
            .await?;
    }
    let increments = (0..100).map(|_| client.incr::<i64, _>(test.name(20)));
    futures::future::try_join_all(increments).await.map_err(text)?;
    is("GET after 100 increments", client.get(test.name(20)), 100).await
}

async fn keys(client: &Client) -> Outcome {
    let test = Names::new("fred-keys");
    let names = test.names(12);
    for name in &names {
        is("SET", client.set(name, name, None, None, false), ok()).await?;
    }
    let asked: Vec<String> =
        names.iter().cloned().chain([names[0].clone(), test.name(50)]).collect();
    is("EXISTS", client.exists(asked), 13).await?;
    is("RENAME", client.rename(&names[0], test.name(51)), ok()).await?;
    is("GET of the new name", client.get(test.name(51)), names[0].clone()).await?;
    is("RENAMENX", client.renamenx(&names[1], &names[2]), 0).await?;
    is("COPY", client.copy(&names[1], test.name(52), None, false), 1).await?;
    is("COPY to a present name", client.copy(&names[2], test.name(52), None, false), 0).await?;
    is("COPY REPLACE", client.copy(&names[2], test.name(52), None, true), 1).await?;
    is("GET of the copy", client.get(test.name(52)), names[2].clone()).await?;
    is("SADD", client.sadd(test.name(53), "member"), 1).await?;
    is("RENAME of a set", client.rename(test.name(53), test.name(54)), ok()).await?;
    is("TYPE", client.r#type(test.name(54)), "set".to_owned()).await?;
    let renamed = client.rename::<String, _, _>(test.name(53), test.name(54));
    fails("RENAME of an absent name", renamed, "no such key").await?;
    is("DEL", client.del(names[..6].to_vec()), 5).await?;
    is("UNLINK", client.unlink(names.clone()), 6).await?;
    is("EXISTS", client.exists(names), 0).await
}

async fn expiry(client: &Client) -> Outcome {
    for name in Names::new("fred-expiry").names(12) {
        is("EXPIRE of an absent name", client.expire(&name, 100, None), 0).await?;
        is("SET", client.set(&name, "x", None, None, false), ok()).await?;
        is("EXPIRE XX", client.expire(&name, 100, Some(ExpireOptions::XX)), 0).await?;
        is("EXPIRE NX", client.expire(&name, 60, Some(ExpireOptions::NX)), 1).await?;
        is("EXPIRE GT", client.expire(&name, 3600, Some(ExpireOptions::GT)), 1).await?;
        is("PEXPIRE LT", client.pexpire(&name, 7_200_000, Some(ExpireOptions::LT)), 0).await?;
        about("TTL", client.ttl(&name), 3600).await?;
        is("PERSIST", client.persist(&name), 1).await?;
        is("PTTL", client.pttl(&name), -1).await?;
        let at_ms = i64::try_from(now_ms()).map_err(text)? + 3_600_000;
        is("EXPIREAT", client.expire_at(&name, at_ms / 1000, None), 1).await?;
        is("PEXPIREAT", client.pexpire_at(&name, at_ms, None), 1).await?;
        is("PEXPIRETIME", client.pexpire_time(&name), at_ms).await?;
        is("PEXPIRE", client.pexpire(&name, 20, None), 1).await?;
        tokio::time::sleep(Duration::from_millis(40)).await;
        is("TTL of an expired name", client.ttl(&name), -2).await?;
    }
    Ok(())
}

async fn hashes(client: &Client) -> Outcome {
    let test = Names::new("fred-hashes");
    for name in test.names(12) {
        is("HSET", client.hset(&name, HashMap::from([("a", 1), ("b", 2), ("c", 3)])), 3).await?;
        is("HSETNX", client.hsetnx(&name, "a", 9), 0).await?;
        is("HGET", client.hget(&name, "a"), 1).await?;
        is("HMGET", client.hmget(&name, vec!["b", "z"]), vec![Some(2), None]).await?;
        is("HINCRBY", client.hincrby(&name, "a", 4), 5).await?;
        is("HINCRBYFLOAT", client.hincrbyfloat(&name, "a", 0.25), 5.25).await?;
        is("HDEL", client.hdel(&name, vec!["b", "z"]), 1).await?;
        is("HLEN", client.hlen(&name), 2).await?;
        is("HSTRLEN", client.hstrlen(&name, "a"), 4).await?;
        is("HEXISTS", client.hexists(&name, "b"), false).await?;
        is("HKEYS", client.hkeys(&name), vec!["a".to_owned(), "c".to_owned()]).await?;
        is("HVALS", client.hvals(&name), vec![5.25, 3.0]).await?;
        let all = HashMap::from([("a".to_owned(), 5.25), ("c".to_owned(), 3.0)]);
        is("HGETALL", client.hgetall(&name), all).await?;
    }
    let many: HashMap<String, i64> =
        (0..700).map(|field| (format!("field {field}"), field)).collect();
    is("HSET of 700 fields", client.hset(test.name(20), many), 700).await?;
    let mut pages = Box::pin(client.hscan(test.name(20), "field *", Some(100)));
    let mut fields = HashSet::new();
    while let Some(mut page) = pages.try_next().await.map_err(text)? {
        let found = page.take_results().map(Map::inner).unwrap_or_default();
        fields.extend(found.into_keys());
        page.next();
    }
    same("fields by HSCAN", fields.len(), 700)
}

async fn sets(client: &Client) -> Outcome {
    let two = HashSet::from(["a".to_owned(), "c".to_owned()]);
    for name in Names::new("fred-sets").names(12) {
        is("SADD", client.sadd(&name, vec!["a", "b", "c", "a"]), 3).await?;
        is("SREM", client.srem(&name, vec!["b", "z"]), 1).await?;
        is("SCARD", client.scard(&name), 2).await?;
        is("SISMEMBER", client.sismember(&name, "b"), false).await?;
        is("SMISMEMBER", client.smismember(&name, vec!["a", "b"]), vec![true, false]).await?;
        is("SMEMBERS", client.smembers(&name), two.clone()).await?;
    }
    Ok(())
}

async fn transactions(client: &Client, node: &str) -> Outcome {
    let test = Names::new("fred-transactions");
    let names = test.names(12);
    for round in 1..=5 {
        let transaction = client.multi();
        for name in &names {
            is("INCRBY in MULTI", transaction.incr_by(name, 2), Value::Queued).await?;
        }
        is("EXEC", transaction.exec(true), vec![round * 2; 12]).await?;
    }
    for name in &names {
        is("GET after 5 transactions", client.get(name), 10).await?;
    }
    let other = open(node).await?;
    is("WATCH", client.watch(names.clone()), ()).await?;
    is("SET by another", other.set(&names[5], "changed", None, None, false), ok()).await?;
    let transaction = client.multi();
    let queued = transaction.set(&names[0], "x", None, None, false);
    is("SET in MULTI", queued, Value::Queued).await?;
    is("EXEC after a change", transaction.exec(true), None::<String>).await?;
    is("GET after a refused EXEC", client.get(&names[0]), 10).await
}

async fn pipeline(client: &Client) -> Outcome {
    let test = Names::new("fred-pipeline");
    let commands = client.pipeline();
    for number in 0..300 {
        let _: () =
            commands.set(test.name(number), number as i64, None, None, true).await.map_err(text)?;
        let _: () = commands.get(test.name(number)).await.map_err(text)?;
    }
    let replies: Vec<Option<i64>> = commands.all().await.map_err(text)?;
    let expected = (0..300).flat_map(|number| [None, Some(number)]);
    same("replies", replies, expected.collect())
}

async fn scan(client: &Client) -> Outcome {
    let test = Names::new("fred-scan");
    let sets = test
        .names(300)
        .into_iter()
        .map(|name| client.set::<(), _, _>(name, "x", None, None, false));
    futures::future::try_join_all(sets).await.map_err(text)?;
    is("HSET", client.hset(test.name(300), ("field", "value")), 1).await?;
    let found: Vec<_> =
        client.scan_buffered(test.pattern(), Some(200), None).try_collect().await.map_err(text)?;
    let found: HashSet<Key> = found.into_iter().collect();
    same("SCAN MATCH", found.len(), 301)?;
    let hashes = client.scan_buffered(test.pattern(), Some(1000), Some(ScanType::Hash));
    let hashes: Vec<Key> = hashes.try_collect().await.map_err(text)?;
    same("SCAN TYPE", hashes, vec![test.name(300).into()])
}

async fn resp3(node: &str) -> Outcome {
    let mut settings = Config::from_url(&format!("redis://{node}/")).map_err(text)?;
    settings.version = RespVersion::RESP3;
    let client = Builder::from_config(settings).build().map_err(text)?;
    client.init().await.map_err(text)?;
    for name in Names::new("fred-resp3").names(12) {
        is("HSET", client.hset(&name, ("a", 1)), 1).await?;
        is("HGETALL", client.hgetall(&name), HashMap::from([("a".to_owned(), 1)])).await?;
        is("HGET of an absent field", client.hget(&name, "z"), None::<String>).await?;
    }
    client.quit().await.map_err(text)
}

struct Fred(Client);

pub(crate) async fn writer(node: &str) -> Result<Box<dyn Writer>, String> {
    Ok(Box::new(Fred(open(node).await?)))
}

impl Writer for Fred {
    fn set(&mut self, name: String, value: String) -> Reply<'_, ()> {
        Box::pin(async move { self.0.set(name, value, None, None, false).await.map_err(text) })
    }

    fn get(&mut self, name: String) -> Reply<'_, Option<String>> {
        Box::pin(async move { self.0.get(name).await.map_err(text) })
    }
}
