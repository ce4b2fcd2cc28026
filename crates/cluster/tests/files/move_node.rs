//! A machine that waits for the mount of another one.

use thalweg_cluster::client::{self, AttachError, Client, MoveTarget, Receiver};
use thalweg_env::Task;
use thalweg_env::connection::Listener;

use crate::journal::Journaled;
use crate::scene::*;

const MOVE_PORT: u16 = 7702;

/// A machine that waits, until this is dropped.
pub(crate) struct Waiting {
    receiver: Receiver,
    _accepting: Task<()>,
}

/// Waits for a mount on this machine, with a journal of that.
pub(crate) async fn receive(
    scene: &Scene,
    machine: &Journaled,
    lazy: bool,
) -> Result<Waiting, AttachError> {
    let options = client::Options { journal: Some(machine.device()), ..machine.options(lazy) };
    let connector = Box::new(machine.host().connector(&scene.server, PORT));
    let receiver = Receiver::begin(machine.process.env(), connector, options).await?;
    let listener = machine.host().listen(MOVE_PORT).unwrap();
    let (serving, own) = (receiver.clone(), machine.process.env().clone());
    let accept = async move {
        loop {
            let Ok(stream) = listener.accept().await else { return };
            let serving = serving.clone();
            own.spawn(async move {
                let _ = serving.serve(stream).await;
            })
            .detach();
        }
    };
    let _accepting = machine.process.env().spawn(accept);
    Ok(Waiting { receiver, _accepting })
}

/// The machine, for a mount that is to move there.
pub(crate) fn target(from: &Journaled, to: &Journaled) -> MoveTarget {
    let name = to.host().name();
    let connector = std::sync::Arc::new(from.host().connector(&to.host(), MOVE_PORT));
    MoveTarget { name, connector }
}

/// The mount when it is there.
pub(crate) async fn arrived(waiting: &Waiting) -> Client {
    waiting.receiver.arrived().await.unwrap().accept()
}
