//! deadpool-redis and bb8-redis: pools of connections of redis-rs.

use crate::kill::{Reply, Writer};
use crate::redis_rs::patient;
use crate::{Names, Outcome, Subject, is, same, text};
use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8;
use deadpool_redis::Manager;
use redis::{AsyncCommands, AsyncConnectionConfig};

pub(crate) const DEADPOOL: Subject = Subject::client("deadpool-redis", "deadpool-redis");
pub(crate) const BB8: Subject = Subject::client("bb8-redis", "bb8-redis");

/// Connections of a pool: fewer than the tasks that use them.
const CONNECTIONS_MAX: u32 = 3;
const TASKS: usize = 8;

type Bb8 = bb8::Pool<RedisConnectionManager>;

fn deadpool(node: &str, settings: AsyncConnectionConfig) -> Result<deadpool_redis::Pool, String> {
    let manager = Manager::new_with_config(format!("redis://{node}/"), settings).map_err(text)?;
    deadpool_redis::Pool::builder(manager).max_size(CONNECTIONS_MAX as usize).build().map_err(text)
}

/// Requests have 0.5 s: it takes no settings of connections.
async fn bb8(node: &str) -> Result<Bb8, String> {
    let manager = RedisConnectionManager::new(format!("redis://{node}/")).map_err(text)?;
    bb8::Pool::builder().max_size(CONNECTIONS_MAX).build(manager).await.map_err(text)
}

pub(crate) async fn check_deadpool(node: &str) {
    DEADPOOL.check("families", deadpool_families(node)).await;
    DEADPOOL.check("pool", deadpool_tasks(node)).await;
}

pub(crate) async fn check_bb8(node: &str) {
    BB8.check("families", bb8_families(node)).await;
    BB8.check("pool", bb8_tasks(node)).await;
}

async fn deadpool_families(node: &str) -> Outcome {
    let pool = deadpool(node, patient())?;
    families(&mut pool.get().await.map_err(text)?, "deadpool").await
}

async fn bb8_families(node: &str) -> Outcome {
    let pool = bb8(node).await?;
    families(&mut *pool.get().await.map_err(text)?, "bb8").await
}

/// Uses a pooled connection: strings, hashes, sets, and a transaction over names of several regions. It is one of
/// few names, because of the time that requests have.
async fn families(client: &mut impl AsyncCommands, pool: &str) -> Outcome {
    let test = Names::new(&format!("{pool}-families"));
    let names = test.names(12);
    for few in names.chunks(3) {
        let pairs: Vec<(&String, usize)> = few.iter().zip(0..).collect();
        is("MSET", client.mset(&pairs), ()).await?;
        is("MGET", client.mget(few), vec![0, 1, 2]).await?;
        let mut commands = redis::pipe();
        commands.atomic();
        for name in few {
            commands.incr(name, 1);
        }
        is("EXEC", commands.query_async(client), vec![1, 2, 3]).await?;
    }
    is("RENAME", client.rename(&names[0], test.name(20)), ()).await?;
    is("DEL", client.del(&names), 11).await?;
    for name in &names {
        is("HSET", client.hset(name, "field", "value"), 1).await?;
        is("HGET", client.hget(name, "field"), "value".to_owned()).await?;
        is("UNLINK", client.unlink(name), 1).await?;
        is("SADD", client.sadd(name, &["a", "b"]), 2).await?;
        is("SCARD", client.scard(name), 2).await?;
    }
    Ok(())
}

/// Each task takes connections again and again, so that pools check those that they reuse.
async fn deadpool_tasks(node: &str) -> Outcome {
    let pool = deadpool(node, patient())?;
    let name = Names::new("deadpool-tasks").name(0);
    let tasks = (0..TASKS).map(|_| async {
        for _ in 0..5 {
            let mut client = pool.get().await.map_err(text)?;
            client.incr::<_, _, i64>(&name, 1).await.map_err(text)?;
        }
        Ok::<(), String>(())
    });
    futures::future::try_join_all(tasks).await?;
    same("connections", pool.status().size, CONNECTIONS_MAX as usize)?;
    is("GET", pool.get().await.map_err(text)?.get(&name), TASKS * 5).await
}

async fn bb8_tasks(node: &str) -> Outcome {
    let pool = bb8(node).await?;
    let name = Names::new("bb8-tasks").name(0);
    let tasks = (0..TASKS).map(|_| async {
        for _ in 0..5 {
            let mut client = pool.get().await.map_err(text)?;
            client.incr::<_, _, i64>(&name, 1).await.map_err(text)?;
        }
        Ok::<(), String>(())
    });
    futures::future::try_join_all(tasks).await?;
    same("connections at most", pool.state().connections <= CONNECTIONS_MAX, true)?;
    is("GET", pool.get().await.map_err(text)?.get(&name), TASKS * 5).await
}

struct Deadpool(deadpool_redis::Pool);

pub(crate) async fn deadpool_writer(node: &str) -> Result<Box<dyn Writer>, String> {
    Ok(Box::new(Deadpool(deadpool(node, AsyncConnectionConfig::new())?)))
}

impl Writer for Deadpool {
    fn set(&mut self, name: String, value: String) -> Reply<'_, ()> {
        Box::pin(async move {
            let mut client = self.0.get().await.map_err(text)?;
            client.set(name, value).await.map_err(text)
        })
    }

    fn get(&mut self, name: String) -> Reply<'_, Option<String>> {
        Box::pin(async move {
            let mut client = self.0.get().await.map_err(text)?;
            client.get(name).await.map_err(text)
        })
    }
}

struct Pooled(Bb8);

pub(crate) async fn bb8_writer(node: &str) -> Result<Box<dyn Writer>, String> {
    Ok(Box::new(Pooled(bb8(node).await?)))
}

impl Writer for Pooled {
    fn set(&mut self, name: String, value: String) -> Reply<'_, ()> {
        Box::pin(async move {
            let mut client = self.0.get().await.map_err(text)?;
            client.set(name, value).await.map_err(text)
        })
    }

    fn get(&mut self, name: String) -> Reply<'_, Option<String>> {
        Box::pin(async move {
            let mut client = self.0.get().await.map_err(text)?;
            client.get(name).await.map_err(text)
        })
    }
}
