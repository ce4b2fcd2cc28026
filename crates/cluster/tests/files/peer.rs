//! A client that speaks the protocol by itself.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::protocol::{Answer, Call, FromServer, HELLO, Invalidated, Reply, Request};
use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task};
use thalweg_fs::Credentials;
use thalweg_net::channel::{CallError, Channel, Handler, Incoming, Limits, Side};
use thalweg_sim::net::Host;
use uuid::Uuid;

use crate::scene::*;

/// A peer that says what it likes.
pub(crate) struct Peer {
    pub(crate) channel: Channel,
    pub(crate) running: Task<std::io::Result<()>>,
    heard: Heard,
}

/// What the server has called.
type Heard = Arc<Mutex<Vec<FromServer>>>;

/// Answers invalidations so many times.
struct Invalidations(Channel, usize, Heard);

impl Handler for Invalidations {
    async fn handle(&self, call: Incoming) -> std::io::Result<()> {
        let heard: FromServer = call.decode().map_err(std::io::Error::other)?;
        self.2.lock().push(heard);
        for _ in 0..self.1 {
            self.0.answer(call.id, &Invalidated, &[]);
        }
        self.0.flush();
        Ok(())
    }
}

/// A call with this number.
pub(crate) fn call(number: u64, request: Request) -> Call {
    Call { number, ..Call::outside(request) }
}

impl Peer {
    pub(crate) async fn new(scene: &Scene, host: &Host, answers: usize) -> Peer {
        let connector = host.connector(&scene.server, PORT);
        let mut stream = connector.connect().await.unwrap();
        HELLO.exchange(&mut stream).await.unwrap();
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: 1 << 20, ..Limits::default() };
        let channel = Channel::new(&scene.env, Side::Connecting, limits, writer);
        let heard = Heard::default();
        let handler = Invalidations(channel.clone(), answers, heard.clone());
        let receiving = channel.clone();
        let running = scene.env.spawn(async move { receiving.run(reader, &handler).await });
        Peer { channel, running, heard }
    }

    /// A peer with a session.
    pub(crate) async fn attached(scene: &Scene, host: &Host, answers: usize) -> Peer {
        let peer = Peer::new(scene, host, answers).await;
        peer.attach(scene.env.uuid(), false).await;
        peer
    }

    /// What the server has called so far.
    pub(crate) fn heard(&self) -> Vec<FromServer> {
        self.heard.lock().clone()
    }

    pub(crate) async fn attach(&self, session: Uuid, resumes: bool) {
        let answer = self.ask(0, Request::Attach { session, resumes, journal: None }).await;
        assert!(matches!(answer, Answer::Attached { .. }), "{answer:?}");
    }

    pub(crate) async fn try_ask(&self, call: &Call) -> Result<Answer, CallError> {
        self.channel.call::<_, Reply>(call, &[]).await.map(|(reply, _)| reply.answer)
    }

    pub(crate) async fn ask(&self, number: u64, request: Request) -> Answer {
        self.try_ask(&call(number, request)).await.unwrap()
    }

    /// Makes a call for a user.
    pub(crate) async fn ask_for(
        &self,
        (number, user): (u64, Option<Credentials>),
        request: Request,
        payload: Vec<u8>,
    ) -> Answer {
        self.try_ask_with((number, user), request, payload).await.unwrap()
    }

    /// Makes a call for a user, on a connection that may end with it.
    pub(crate) async fn try_ask_with(
        &self,
        (number, user): (u64, Option<Credentials>),
        request: Request,
        payload: Vec<u8>,
    ) -> Result<Answer, CallError> {
        let call = Call { user, ..call(number, request) };
        let answered = self.channel.call::<_, Reply>(&call, &[payload.into()]).await;
        answered.map(|(reply, _)| reply.answer)
    }

    /// Sends something without an answer.
    pub(crate) fn tell(&self, request: Request, payload: Vec<u8>) {
        self.channel.tell(&call(0, request), &[payload.into()]).unwrap();
        self.channel.flush();
    }

    /// The connection has ended, or ends soon.
    pub(crate) async fn ends(self, env: &Env) {
        let ended = env.timeout(Duration::from_secs(5), self.running).await;
        assert!(ended.is_some(), "the connection goes on");
    }
}
