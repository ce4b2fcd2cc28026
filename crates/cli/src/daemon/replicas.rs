//! The replicas of a session's volumes: primaries that others follow, and followers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thalweg_store::block::Blocks;

use serde_json::{Value, json};
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, watch};
use thalweg_ipc::remote::{Advice, Remote, RemoteError};
use thalweg_net::entry::Service;
use thalweg_net::keys::Home;
use thalweg_replica::{Follower, Primary, PrimaryOptions, Stopped, announce};

use super::heard::HeardFile;
use crate::attention::{Followers, Upstream};
use crate::failure::{Failure, Outcome};
use crate::volume::opened::Opened;

/// Pauses between attempts to reach a primary.
const RETRY: Duration = Duration::from_secs(1);

/// The primaries and followers of a session, by the names of their volumes.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    /// How primaries treat their followers.
    options: parking_lot::Mutex<PrimaryOptions>,
    /// Tasks that tell old primaries that they are replaced.
    telling: parking_lot::Mutex<Vec<Task<()>>>,
    primaries: tokio::sync::Mutex<BTreeMap<String, Arc<Primary>>>,
    following: parking_lot::Mutex<BTreeMap<String, Following>>,
}

#[derive(Debug)]
struct Following {
    follower: Arc<Follower>,
    /// Why it does not follow now.
    trouble: watch::Receiver<Option<String>>,
    heard: Arc<HeardFile>,
    _tasks: [Task<()>; 2],
}

impl Replicas {
    /// Serves a follower of a volume until its connection ends.
    pub(crate) async fn serve(
        &self,
        env: &Env,
        volume: &Opened,
        stream: impl Stream,
        client: &str,
    ) -> Outcome<()> {
        let primary = self.primary(env, volume).await?;
        primary.serve(stream, client).await?;
        Ok(())
    }

    /// The primary of a volume, which begins with its first follower.
    async fn primary(&self, env: &Env, volume: &Opened) -> Outcome<Arc<Primary>> {
        let mut primaries = self.primaries.lock().await;
        if let Some(primary) = primaries.get(&volume.target.name) {
            return Ok(primary.clone());
        }
        let pool = volume.chained().ok_or_else(|| volume.target.refused())?;
        let options = *self.options.lock();
        let primary = Arc::new(Primary::new(env, pool.chain().clone(), options).await?);
        primaries.insert(volume.target.name.clone(), primary.clone());
        Ok(primary)
    }

    /// From now on these volumes treat their followers so, also while they have none: flushes wait for them.
    pub(crate) async fn treat(
        &self,
        env: &Env,
        volumes: &[Arc<Opened>],
        options: PrimaryOptions,
    ) -> Outcome<()> {
        *self.options.lock() = options;
        if options.ack > 0 {
            for volume in volumes {
                self.primary(env, volume).await?;
            }
        }
        Ok(())
    }

    /// Ends the waiting of flushes for replicas.
    pub(crate) async fn end_acknowledging(&self) {
        let primaries = self.primaries.lock().await;
        primaries.values().for_each(|primary| primary.end_acknowledging());
    }

    /// Tells the primary that a volume has replaced, if there is one that does not know it.
    pub(crate) async fn tell_replaced(&self, env: &Env, volume: &Arc<Opened>, home: Home) {
        let Some(pool) = volume.chained() else { return };
        let Some(Ok(address)) = pool.replaces().await.as_deref().and_then(Remote::of) else {
            return;
        };
        let telling = Telling { env: env.clone(), address, home, volume: volume.clone() };
        self.telling.lock().push(env.spawn(telling.run()));
    }

    /// Begins to keep the changes of a volume that has been followed before, so that its followers need no copy.
    pub(crate) async fn resume(&self, env: &Env, volume: &Opened) -> Outcome<()> {
        let has_history = |pool: &thalweg_store::pool::Pool| {
            !pool.chain().history().is_empty() && !pool.chain().label().follows
        };
        match volume.chained().is_some_and(has_history) {
            true => self.primary(env, volume).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes a volume follow the one that it was made for.
    pub(crate) async fn follow(&self, env: &Env, volume: &Opened, home: Home) -> Outcome<()> {
        let pool = volume.chained().ok_or_else(|| volume.target.refused())?;
        let address = followed(pool.follows().await)?;
        let follower = Arc::new(Follower::new(env, pool.chain().clone()));
        let asked = follower.clone();
        pool.upstream().set(Box::new(move || asked.current_as_of()));
        let (says, trouble) = watch::channel(None);
        let name = volume.target.name.clone();
        let work = Work {
            env: env.clone(),
            address,
            home,
            follower: follower.clone(),
            name: name.clone(),
            says,
        };
        let heard = Arc::new(HeardFile {
            env: env.clone(),
            folder: volume.target.place().to_owned(),
            follower: follower.clone(),
        });
        let _tasks = [env.spawn(work.run()), env.spawn(heard.clone().keep())];
        self.following.lock().insert(name, Following { follower, trouble, heard, _tasks });
        Ok(())
    }

    /// What is known of the replicas of a volume, as JSON.
    pub(crate) async fn status(&self, volume: &Opened) -> Outcome<Value> {
        let pool = volume.chained().ok_or_else(|| volume.target.refused())?;
        let chain = pool.chain();
        let position = chain.position_of(chain.now()).map(|position| position.to_string());
        let label = chain.label();
        let fence = label.fence.map(|fence| {
            let from = chain.position_of(fence.from).map(|position| position.to_string());
            json!({ "term": fence.term, "from": from })
        });
        let mut status = json!({
            "position": position,
            "follows": pool.follows().await,
            "term": label.term,
            "fenced": fence,
        });
        if let Some(follower) = self.following(&volume.target.name) {
            status["follower"] = follower?;
        }
        if let Some(primary) = self.primaries.lock().await.get(&volume.target.name) {
            status["followers"] = serde_json::to_value(primary.followers())?;
            status["ack"] = serde_json::to_value(primary.ack_status())?;
        }
        Ok(status)
    }

    /// What the primary of a volume knows of its followers; `None` if none has followed it and no flush waits for any.
    pub(crate) async fn followers(&self, volume: &Opened) -> Option<Followers> {
        let primaries = self.primaries.lock().await;
        let primary = primaries.get(&volume.target.name)?;
        Some(Followers {
            connected: primary.followers(),
            lost: primary.lost_followers(),
            ack: primary.ack_status(),
        })
    }

    /// What a replica knows of its primary; `None` for a volume that follows none.
    pub(crate) async fn upstream(&self, volume: &Opened) -> Option<Upstream> {
        let pool = volume.chained().filter(|pool| pool.chain().label().follows)?;
        let address = pool.follows().await;
        let following = self.following.lock();
        let running = following.get(&volume.target.name);
        Some(Upstream {
            address,
            follower: running.map(|it| it.follower.status()),
            trouble: running.and_then(|it| it.trouble.borrow().clone()),
        })
    }

    /// What a follower that runs knows.
    fn following(&self, name: &str) -> Option<Outcome<Value>> {
        let following = self.following.lock();
        let Following { follower, trouble, .. } = following.get(name)?;
        let trouble = trouble.borrow().clone();
        let value = serde_json::to_value(follower.status()).map(|mut value| {
            value["trouble"] = trouble.into();
            value
        });
        Some(value.map_err(Into::into))
    }

    /// Ends following, and being followed.
    pub(crate) async fn close(&self) {
        let following = std::mem::take(&mut *self.following.lock());
        following.values().for_each(|following| following.heard.write());
        drop(following);
        self.telling.lock().clear();
        self.primaries.lock().await.clear();
    }
}

/// Tells an old primary that it is replaced, until it knows.
struct Telling {
    env: Env,
    address: Remote,
    home: Home,
    volume: Arc<Opened>,
}

impl Telling {
    async fn run(self) {
        let Telling { env, address, home, volume } = self;
        let (Some(pool), name) = (volume.chained(), &volume.target.name) else { return };
        loop {
            let answer = match address.enter(&env, &home, Service::Replica).await {
                Ok(stream) => announce(&env, stream, pool.chain(), 0).await,
                Err(error) => Err(Stopped::Lost(error.to_string())),
            };
            match answer {
                Ok(_) => {
                    tracing::info!(volume = name, primary = %address, "the old primary is fenced");
                    if let Err(error) = pool.forget_replaced().await {
                        tracing::warn!(volume = name, %error, "the old primary is told again");
                    }
                    return;
                }
                Err(Stopped::Lost(why)) => {
                    tracing::debug!(volume = name, primary = %address, why, "not reached yet");
                }
                Err(error) => {
                    tracing::error!(volume = name, primary = %address, "{}", Failure::of(&error));
                    return;
                }
            }
            env.sleep(RETRY).await;
        }
    }
}

/// The address of the volume that a replica follows.
pub(crate) fn followed(address: Option<String>) -> Outcome<Remote> {
    let address = address.ok_or_else(|| {
        Failure::new("the volume follows no other one")
            .help("thalweg replica create makes one that does")
    })?;
    match Remote::of(&address) {
        Some(remote) => Ok(remote?),
        None => Err(Failure::new(format!("the address of its primary is invalid: {address}"))),
    }
}

/// Follows a primary, over one connection after the other.
struct Work {
    env: Env,
    address: Remote,
    home: Home,
    follower: Arc<Follower>,
    name: String,
    says: watch::Sender<Option<String>>,
}

impl Work {
    async fn run(self) {
        loop {
            let (why, hopeless) = self.follow().await;
            let is_new = self.says.send_replace(Some(why.clone())).as_deref() != Some(&*why);
            match (is_new, hopeless) {
                (true, true) => {
                    tracing::error!(volume = self.name, primary = %self.address, "{why}")
                }
                (true, false) => {
                    tracing::warn!(volume = self.name, primary = %self.address, "{why}")
                }
                (false, _) => {}
            }
            self.env.sleep(if hopeless { 10 * RETRY } else { RETRY }).await;
        }
    }

    /// Follows over one connection; returns why it ended, and whether trying again is likely to fail as well.
    async fn follow(&self) -> (String, bool) {
        let entered = self.address.enter(&self.env, &self.home, Service::Replica).await;
        let stream = match entered {
            Ok(stream) => stream,
            Err(error) => {
                let hopeless = matches!(&error, RemoteError::Visit { .. } | RemoteError::Key(_))
                    && error.advice() != Advice::Retry;
                return (Failure::of(&error).to_string(), hopeless);
            }
        };
        tracing::info!(volume = self.name, primary = %self.address, "connected");
        self.says.send_replace(None);
        let stopped = self.follower.follow(stream).await;
        (Failure::of(&stopped).to_string(), !matches!(stopped, Stopped::Lost(_)))
    }
}
