//! Rebuilding a side: a line moves from the first byte to the last.
//!
//! Below the line the side is equal to the others, and writes go to it as well. Above the line its content is
//! undefined, and writes skip it. The copier moves the line over one chunk at a time, and holds the chunk's
//! range meanwhile: no write runs there while it reads the old content and writes it, so no write can be
//! lost.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;

use super::{MirrorError, Shared, SideState};
use crate::device::{DeviceError, Purpose};

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// Makes the side stale again unless the rebuild succeeds.
struct Attempt<'a> {
    shared: &'a Shared,
    side: usize,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.shared.change(|sides| sides.end(self.side, false));
    }
}

pub(super) async fn run(shared: &Arc<Shared>, side: usize) -> Result<(), MirrorError> {
    let total = shared.geometry.size;
    shared.change(|sides| match sides.state(side) {
        None => Err(MirrorError::NoSuchSide { side }),
        Some(SideState::Stale | SideState::Failed) => {
            sides.begin(side, total);
            Ok(())
        }
        Some(state) => Err(MirrorError::NotOut { side, state }),
    })?;
    let _attempt = Attempt { shared, side };
    for from in (0..total).step_by(CHUNK as usize) {
        let to = total.min(from + CHUNK);
        let copier = shared.clone();
        // A chunk whose rebuild is dropped is still finished: its range stays held until then.
        shared.to_end(async move { copier.copy(side, from, to).await }).await?;
    }
    let finisher = shared.clone();
    shared.to_end(async move { finisher.finish(side).await }).await?;
    Ok(())
}

impl Shared {
    /// Writes to every side in sync at once, durably. A side that is being rebuilt gets its flush in any case: it may be the last
    /// one before writes that this one covers.
    pub(super) async fn write_durably(
        &self,
        range: Range<u64>,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        if range.is_empty() {
            return self.flush(purpose).await;
        }
        let offset = range.start;
        let _held = self.locks.lock(range).await;
        let (writable, flushable) = {
            let sides = self.sides.lock();
            (sides.writable(offset), sides.flushable())
        };
        let outcomes = join_all(flushable.iter().map(|(side, device)| {
            let data = data.clone();
            let takes = writable.iter().any(|(other, _)| other == side);
            async move {
                (
                    *side,
                    match takes {
                        true => device.write_durably(offset, data, purpose).await,
                        false => device.flush(purpose).await,
                    },
                )
            }
        }));
        self.settle(outcomes.await).await
    }

    /// Copies `[from, to)` to `side` and moves its line there.
    async fn copy(&self, side: usize, from: u64, to: u64) -> Result<(), DeviceError> {
        let _held = self.locks.lock(from..to).await;
        let device = {
            let sides = self.sides.lock();
            match (sides.state(side), sides.device(side)) {
                (Some(SideState::Rebuilding { .. }), Some(device)) => device,
                _ => return Err(self.lost(side)),
            }
        };
        let bytes = self.read_any(from, (to - from) as usize, Purpose::Repair, &[side]).await?;
        if let Err(error) = device.write(from, vec![bytes], Purpose::Repair).await {
            self.change(|sides| sides.fail(side, &error));
            return Err(error);
        }
        match self.change(|sides| sides.advance(side, &device, from, to)) {
            true => Ok(()),
            false => Err(self.lost(side)),
        }
    }

    /// Makes the copy durable, has that recorded, and only then allows reads of the side.
    async fn finish(&self, side: usize) -> Result<(), DeviceError> {
        let Some(device) = self.sides.lock().device(side) else { return Err(self.lost(side)) };
        if let Err(error) = device.flush(Purpose::Repair).await {
            self.change(|sides| sides.fail(side, &error));
            return Err(error);
        }
        let _recording = self.recording.lock().await;
        let (mut in_sync, failures) = {
            let sides = self.sides.lock();
            match sides.state(side) {
                Some(SideState::Rebuilding { .. }) => (sides.in_sync(), sides.failures()),
                _ => return Err(self.lost(side)),
            }
        };
        in_sync[side] = true;
        self.record.record(&in_sync).await?;
        self.set_recorded(failures);
        // A failure during the record is counted separately; the request that met it waits for this one and
        // then records again.
        match self.change(|sides| sides.end(side, true)) {
            true => Ok(()),
            false => Err(self.lost(side)),
        }
    }

    /// Reads from the first side in sync that succeeds, without repairing any.
    pub(super) async fn read_any(
        &self,
        offset: u64,
        len: usize,
        purpose: Purpose,
        except: &[usize],
    ) -> Result<Bytes, DeviceError> {
        let sides = self.sides.lock().readable(except);
        let mut failure = None;
        for (_, device) in sides {
            match device.read(offset, len, purpose).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| DeviceError::Closed { device: self.name() }))
    }
}
