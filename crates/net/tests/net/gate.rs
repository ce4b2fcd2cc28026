//! The gate of a server on a simulated network.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_env::connection::Listener;
use thalweg_net::channel::{Channel, Limits, NoCalls, Side};
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::{Gate, Guest, PATIENCE};
use thalweg_net::keys::{Access, Authorized, Client, Home, Key, KeyError, Offer, Token};
use thalweg_net::visit::{self, VisitError};
use thalweg_sim::net::{LinkSpec, Network, SimStream};
use thalweg_sim::runtime::run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_rustls::TlsStream;

const TRANSACTIONS: (Service, &str) = (Service::Transactions, "vol");

fn anything(_: &Client, _: Service, _: &str) -> bool {
    true
}

/// A server with a gate, and a client, on a simulated network.
struct Scene {
    env: Env,
    network: Network,
    home: Home,
    server: Key,
    client: Key,
}

impl Scene {
    fn new(env: &Env, folder: &Path) -> Scene {
        let [server, client] = [(); 2].map(|()| Key::generate(env).unwrap());
        let home = Home::at(folder.join("keys"));
        home.add_key(&server).unwrap();
        let network = Network::new(env, LinkSpec::of(Duration::from_millis(1)));
        Scene { env: env.clone(), network, home, server, client }
    }

    fn authorize(&self, access: Access) {
        let client = Client { access, ..Client::new(self.client.public(), "client").unwrap() };
        Authorized::update(&self.home.authorized_clients(), |all| all.add(client)).unwrap();
    }

    fn revoke(&self) {
        let remove = |all: &mut Authorized| Ok(all.remove("client"));
        assert!(Authorized::update(&self.home.authorized_clients(), remove).unwrap().is_some());
    }

    fn gate(&self) -> Gate {
        Gate::new(&self.env, self.home.clone()).unwrap()
    }

    async fn streams(&self) -> (SimStream, SimStream) {
        let (client, server) = (self.network.host("client"), self.network.host("server"));
        let listener = server.listen(1).unwrap();
        let near = client.connector(&server, 1).open().await.unwrap();
        (near, listener.accept().await.unwrap())
    }

    /// What client and server say when the client wants to enter.
    async fn enter(
        &self,
        gate: &Gate,
        seats: usize,
        wanted: (Service, &str),
    ) -> (Result<TlsStream<SimStream>, VisitError>, io::Result<Option<Guest<SimStream>>>) {
        let (near, far) = self.streams().await;
        let seats = Arc::new(Semaphore::new(seats));
        let serves = |_: &Client, _: Service, name: &str| name == "vol";
        tokio::join!(
            visit::enter(&self.env, near, &self.client, self.server.public(), wanted),
            gate.admit(far, &seats, serves),
        )
    }

    /// Why the client is not let in.
    async fn refusal(&self, gate: &Gate, seats: usize, wanted: (Service, &str)) -> Refusal {
        match self.enter(gate, seats, wanted).await {
            (Err(VisitError::Refused(refusal)), Ok(None)) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

fn some() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

/// Runs a test in virtual time, with a folder.
fn play<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Scene) -> F) {
    let folder = tempfile::tempdir().unwrap();
    run(seed, |env| test(Scene::new(&env, folder.path())));
}

#[test]
fn a_known_client_enters_and_talks() {
    play(1, |scene| async move {
        scene.authorize(Access::Read);
        let (near, far) = scene.enter(&scene.gate(), 1, TRANSACTIONS).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap().unwrap());
        assert_eq!((far.service, &*far.name), TRANSACTIONS);
        let client = far.permission.client();
        assert_eq!((&*client.name, client.access), ("client", Access::Read));
        near.write_all(b"question").await.unwrap();
        near.flush().await.unwrap();
        let mut found = [0; 8];
        far.stream.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"question");
    });
}

#[test]
fn clients_are_refused_with_the_reason() {
    play(2, |scene| async move {
        let gate = scene.gate();
        assert_eq!(scene.refusal(&gate, 1, TRANSACTIONS).await, Refusal::UnknownKey);
        scene.authorize(Access::Write);
        let other = (Service::Transactions, "other");
        assert_eq!(scene.refusal(&gate, 1, other).await, Refusal::NoSuchName("other".into()));
        assert_eq!(scene.refusal(&gate, 0, TRANSACTIONS).await, Refusal::Busy);
        scene.revoke();
        assert_eq!(scene.refusal(&gate, 1, TRANSACTIONS).await, Refusal::UnknownKey);
    });
}

#[test]
fn a_permission_ends_when_its_line_is_removed_or_changed_and_not_before() {
    play(3, |scene| async move {
        let gate = scene.gate();
        for reduced in [false, true] {
            scene.authorize(Access::Write);
            let permission =
                scene.enter(&gate, 1, TRANSACTIONS).await.1.unwrap().unwrap().permission;
            let mut ended = Box::pin(permission.ended());
            assert!(scene.env.timeout(Duration::from_secs(60), &mut ended).await.is_none());
            scene.revoke();
            if reduced {
                scene.authorize(Access::Read);
            }
            let span = Duration::from_secs(2);
            assert!(scene.env.timeout(span, &mut ended).await.is_some(), "reduced: {reduced}");
            if reduced {
                scene.revoke();
            }
        }
    });
}

#[test]
fn an_invalid_list_of_clients_changes_nothing() {
    play(4, |scene| async move {
        scene.authorize(Access::Write);
        let gate = scene.gate();
        let guest = scene.enter(&gate, 1, TRANSACTIONS).await.1.unwrap().unwrap();
        let mut ended = Box::pin(guest.permission.ended());
        std::fs::write(scene.home.authorized_clients(), "nonsense\n").unwrap();
        assert!(scene.env.timeout(Duration::from_secs(60), &mut ended).await.is_none());
        assert!(scene.enter(&gate, 1, TRANSACTIONS).await.0.is_ok());
        let refused = Gate::new(&scene.env, scene.home.clone()).unwrap_err();
        assert!(refused.to_string().contains("line 1"), "{refused}");
    });
}

#[test]
fn a_token_enrols_one_client_which_may_enter_at_once() {
    play(5, |scene| async move {
        let gate = scene.gate();
        let token = Token::generate(&scene.env, &scene.server.public()).unwrap();
        let client = Client::new(scene.client.public(), "laptop").unwrap();
        Offer::new(&token, &client, 100).add_to(&scene.home.offers(), 0).unwrap();
        let enrol = async |token: &Token| {
            let (near, far) = scene.streams().await;
            let (serves, seats) = (|_: &Client, _, _: &str| true, some());
            let enrolling = visit::enrol(&scene.env, near, &scene.client, token, None);
            tokio::join!(enrolling, gate.admit(far, &seats, serves))
        };
        let foreign = Token::generate(&scene.env, &scene.client.public()).unwrap();
        assert!(matches!(enrol(&foreign).await, (Err(VisitError::WrongServer), Err(_))));
        let (enrolled, admitted) = enrol(&token).await;
        assert_eq!(enrolled.unwrap(), (scene.server.public(), "laptop".to_owned()));
        assert!(admitted.unwrap().is_none());
        assert!(scene.enter(&gate, 1, TRANSACTIONS).await.0.is_ok());
        let (again, _) = enrol(&token).await;
        assert!(matches!(again, Err(VisitError::Refused(Refusal::UnknownToken))));
        // The client is known already: another token tells it so.
        let token = Token::generate(&scene.env, &scene.server.public()).unwrap();
        Offer::new(&token, &client, 100).add_to(&scene.home.offers(), 0).unwrap();
        assert!(matches!(enrol(&token).await.0, Err(VisitError::Refused(Refusal::Taken(_)))));
    });
}

#[test]
fn a_token_is_not_used_up_by_a_name_that_its_client_cannot_enter() {
    play(10, |scene| async move {
        let gate = scene.gate();
        let token = Token::generate(&scene.env, &scene.server.public()).unwrap();
        let client = Client::new(scene.client.public(), "laptop").unwrap();
        Offer::new(&token, &client, 100).add_to(&scene.home.offers(), 0).unwrap();
        let enrol = async |name: &str| {
            let (near, far) = scene.streams().await;
            let serves =
                |client: &Client, _: Service, name: &str| client.name == "laptop" && name == "vol";
            let wanted = Some((Service::Files, name));
            let enrolling = visit::enrol(&scene.env, near, &scene.client, &token, wanted);
            let seats = some();
            let (enrolled, admitted) = tokio::join!(enrolling, gate.admit(far, &seats, serves));
            assert!(admitted.unwrap().is_none());
            enrolled
        };
        for _ in 0..2 {
            let refused = enrol("/typo").await;
            let Err(VisitError::Refused(Refusal::NoSuchName(name))) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(name, "/typo");
            assert_eq!(scene.refusal(&gate, 1, TRANSACTIONS).await, Refusal::UnknownKey);
        }
        assert_eq!(enrol("vol").await.unwrap(), (scene.server.public(), "laptop".to_owned()));
        let again = enrol("vol").await;
        assert!(matches!(again, Err(VisitError::Refused(Refusal::UnknownToken))));
    });
}

#[test]
fn a_server_with_another_key_is_told_from_a_broken_connection() {
    play(6, |scene| async move {
        let gate = scene.gate();
        let (near, far) = scene.streams().await;
        let expected = scene.client.public();
        let entering = visit::enter(&scene.env, near, &scene.client, expected, TRANSACTIONS);
        let seats = some();
        let (entered, admitted) = tokio::join!(entering, gate.admit(far, &seats, anything));
        assert!(matches!(entered, Err(VisitError::WrongServer)) && admitted.is_err());
        let (near, far) = scene.streams().await;
        drop(far);
        let entering = visit::enter(&scene.env, near, &scene.client, expected, TRANSACTIONS);
        assert!(matches!(entering.await, Err(VisitError::Lost(_))));
    });
}

#[test]
fn a_peer_that_says_nothing_is_given_up_by_both_sides() {
    play(7, |scene| async move {
        let (silent, far) = scene.streams().await;
        let start = scene.env.now();
        let admitted = scene.gate().admit(far, &some(), anything).await;
        assert_eq!(admitted.unwrap_err().kind(), ErrorKind::TimedOut);
        let (near, silent_server) = scene.streams().await;
        let expected = scene.server.public();
        let entered = visit::enter(&scene.env, near, &scene.client, expected, TRANSACTIONS).await;
        assert!(
            matches!(entered, Err(VisitError::Lost(error)) if error.kind() == ErrorKind::TimedOut)
        );
        assert!(scene.env.now().since(start) >= 2 * PATIENCE);
        drop((silent, silent_server));
    });
}

#[test]
fn a_gate_needs_a_key() {
    play(8, |scene| async move {
        std::fs::remove_file(scene.home.key_file()).unwrap();
        let refused = Gate::new(&scene.env, scene.home.clone()).unwrap_err();
        assert!(
            matches!(refused, KeyError::NoKey { .. }) && refused.to_string().contains("key new")
        );
    });
}

#[test]
fn a_client_that_is_killed_has_left_and_one_in_the_middle_of_a_frame_is_lost() {
    play(9, |scene| async move {
        scene.authorize(Access::Write);
        let gate = scene.gate();
        for (sent, is_left) in [(&[][..], true), (&[40, 0, 0, 0, 2, 0, 1][..], false)] {
            let (near, far) = scene.enter(&gate, 1, TRANSACTIONS).await;
            let (mut near, far) = (near.unwrap(), far.unwrap().unwrap().stream);
            near.write_all(sent).await.unwrap();
            near.flush().await.unwrap();
            drop(near);
            let (reader, writer) = tokio::io::split(far);
            let channel = Channel::new(&scene.env, Side::Accepting, Limits::default(), writer);
            assert_eq!(channel.run(reader, &NoCalls).await.is_ok(), is_left);
        }
    });
}
