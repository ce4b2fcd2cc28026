//! Opening a volume for a server of its filesystem.

use std::time::Duration;

use thalweg_env::Env;
use thalweg_store::open::{AnyVolume, Options};

use super::opened::Opened;
use crate::devices::{self, Service};
use crate::failure::{Failure, Outcome};
use crate::target::Target;

/// The longest time after which a process that waits for a volume looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Looks at a volume in the time of a lease, at least.
const LOOKS: u32 = 8;

/// Opens a volume for a server. One that stands by waits until no other process has the volume open, or until the server
/// there is silent. `waits` is told once why that takes longer.
pub(crate) async fn open(
    env: &Env,
    target: &Target,
    service: &Service,
    waits: impl FnOnce(&Failure),
) -> Outcome<Opened> {
    let mut waits = Some(waits);
    // One for all attempts, since it remembers what it has seen of the other server.
    let kinds = devices::all_served(env, service);
    let journal = target.journal.clone();
    let options = Options { kinds: kinds.devices.clone(), journal, ..Options::default() };
    loop {
        match AnyVolume::open(env, &target.place, &options).await {
            Err(error) if error.is_locked() && service.stands_by => {
                if let Some(waits) = waits.take() {
                    waits(&Failure::of(&error));
                }
                let _ = kinds.devices.close().await;
                env.sleep(LOOK_AGAIN.min(service.lease / LOOKS)).await;
            }
            opened => return Opened::finish(target, kinds, opened).await,
        }
    }
}
