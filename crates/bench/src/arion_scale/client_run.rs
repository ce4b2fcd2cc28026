//! What a client does in a run, and has come to.

use futures::future::BoxFuture;

use crate::BenchError;
use crate::arion_machines::Machines;
use crate::rig::failed;

/// What a client does.
pub(super) type ClientLoad = BoxFuture<'static, Result<ClientRun, BenchError>>;

/// A client's run.
pub(super) struct ClientRun {
    pub(super) seconds: f64,
    /// Bytes or requests.
    pub(super) done: f64,
    /// Of each write or request, in seconds.
    pub(super) latencies: Vec<f64>,
}

/// Drains all clients, and clears their caches.
pub(super) async fn settle(machines: &Machines) -> Result<(), BenchError> {
    for machine in &machines.clients {
        machine.subject.drain().await.map_err(failed)?;
        machine.subject.forget_pages();
    }
    Ok(())
}
