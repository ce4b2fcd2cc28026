//! The end of a server: the first signal asks for it, the second one does not ask.

use thalweg_store::env::{Env, Task};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// What a shell reports for a process that an interrupt ended.
const INTERRUPTED: i32 = 130;

/// Turns `stop` true at the first SIGINT or SIGTERM, and ends the process at the second.
pub(crate) fn watch(env: &Env, stop: watch::Sender<bool>) -> std::io::Result<Task<()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(env.spawn(async move {
        next(&mut interrupt, &mut terminate).await;
        tracing::info!("ending; a second signal ends at once");
        stop.send_replace(true);
        next(&mut interrupt, &mut terminate).await;
        // No destructor may hold this up: whoever signals twice wants out.
        std::process::exit(INTERRUPTED);
    }))
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        biased;
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
