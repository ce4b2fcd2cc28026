//! Ends a server on a signal: the first one cleanly, the second one at once.

use thalweg_env::{Env, Task, watch};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code that a shell reports for a process ended by SIGINT.
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
        // Without destructors, which could wait.
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
