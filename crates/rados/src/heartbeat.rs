//! The heartbeat of a served image, by which a standby notices that the server has died.
//!
//! The server writes a `Beat` into the attribute `BEAT` of the image's header, four times in a lease, under its
//! lock. An acknowledged beat extends the server's tenure ([`thalweg_env::Tenure`]) up to three quarters of a lease after
//! the beat was *sent*. When the tenure has run out, the server answers nothing.
//!
//! A standby reads the beat again and again. When it has not changed for seven eighths of a lease since the *answer* that showed it
//! first, the standby *claims* the image: it replaces the beat by a greater one, if the beat is still the one that it saw.
//! A beat of the server is refused from then on, since it is less. So the last beat that was ever acknowledged was sent
//! more than that before the claim, and the tenure had run out, unless the clocks of the two machines differ by more
//! than an eighth in speed. Only then does the standby stop the server, as [`fence`](crate::fence) describes.
//!
//! Of two standbys, the claim of one succeeds. To the other one it is a new beat, so that it waits again. A lock
//! without a beat of its holder, such as that of a mount, is never broken by a standby.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Task, Tenure, Term, Time};

use crate::ObjectError;
use crate::fence::{Fence, LOCK};
use crate::format::{BEAT, header_name};
use crate::object::{Change, Comparison, LockHolder, ObjectStore, ObjectStoreRef, Step};
use crate::opener::shown;

/// Beats in the time of a lease.
const BEATS: u32 = 4;
/// A standby that would have to claim the image so soon waits for that, instead of looking again.
const SOON: Duration = Duration::from_millis(500);

/// How a server opens an image.
#[derive(Clone, Debug)]
pub struct Serving {
    /// A standby takes over from a server without a beat for so long.
    pub lease: Duration,
    /// How long the server may answer.
    pub tenure: Tenure,
    /// Whether it takes over from a server that is silent.
    pub stands_by: bool,
}

/// A beat. As texts, the beats of an image become greater.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The epoch of the holder.
    epoch: u64,
    /// How often standbys have claimed the image in this epoch. The holder's beats have none.
    claims: u32,
    count: u64,
    /// The holder's lease, in milliseconds.
    lease: u64,
    /// The cookie of the holder's lock.
    cookie: String,
}

impl Beat {
    /// The first beat of a new holder.
    pub(crate) fn first(epoch: u64, lease: Duration, cookie: &str) -> Beat {
        let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        Beat { epoch, claims: 0, count: 0, lease, cookie: cookie.to_owned() }
    }

    fn value(&self) -> Bytes {
        let Beat { epoch, claims, count, lease, cookie } = self;
        format!("{epoch:016x} {claims:08x} {count:016x} {lease} {cookie}").into()
    }

    fn decode(value: &[u8]) -> Option<Beat> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.splitn(5, ' ');
        let epoch = u64::from_str_radix(parts.next()?, 16).ok()?;
        let claims = u32::from_str_radix(parts.next()?, 16).ok()?;
        let count = u64::from_str_radix(parts.next()?, 16).ok()?;
        let lease = parts.next()?.parse().ok().filter(|lease| *lease > 0)?;
        Some(Beat { epoch, claims, count, lease, cookie: parts.next()?.to_owned() })
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.lease)
    }

    /// How long a server may answer after it sent the beat: less than a lease, since clocks differ.
    fn tenure(&self) -> Duration {
        self.lease() - self.lease() / 4
    }

    /// How long a standby waits for the next one. The rest of the lease is for taking over.
    fn patience(&self) -> Duration {
        self.lease() - self.lease() / 8
    }

    /// Writes it.
    pub(crate) fn step(&self) -> Step {
        Step::SetAttribute { attribute: BEAT, value: self.value() }
    }

    /// Writes it as the holder, unless a standby has claimed the image.
    fn change(&self) -> Change {
        let (lock, cookie) = (LOCK.to_owned(), self.cookie.clone());
        let comparison = Comparison::AtLeast;
        Change::new()
            .then(Step::AssertLocked { lock, cookie })
            .then(Step::Compare { attribute: BEAT, comparison, value: self.value() })
            .then(self.step())
    }

    /// Claims the image, if this is the last beat.
    fn claim(&self) -> Change {
        let (comparison, value) = (Comparison::Equal, self.value());
        let claim = Beat { claims: self.claims.saturating_add(1), ..self.clone() };
        Change::new().then(Step::Compare { attribute: BEAT, comparison, value }).then(claim.step())
    }
}

/// Writes the beats of a holder.
pub(crate) struct Heart {
    pub(crate) env: Env,
    pub(crate) store: ObjectStoreRef,
    /// The image's header.
    pub(crate) header: String,
    pub(crate) fence: Arc<Fence>,
    pub(crate) term: Arc<Term>,
}

impl Heart {
    /// Writes beats after the first one, which was sent then and acknowledged, until the device is closed or lost.
    pub(crate) fn beat(self, (first, sent): (Beat, Time)) -> Task<()> {
        self.term.extend(sent + first.tenure());
        let env = self.env.clone();
        env.spawn(async move { self.run(first, sent).await })
    }

    async fn run(&self, mut beat: Beat, mut sent: Time) {
        let mut has_warned = false;
        loop {
            self.env.sleep_until(sent + beat.lease() / BEATS).await;
            if self.fence.is_closed() {
                return;
            }
            if self.fence.is_lost() {
                self.term.end();
                return;
            }
            sent = self.env.now();
            beat.count += 1;
            match self.store.apply(&self.header, beat.change()).await {
                _ if self.fence.is_closed() => return,
                Ok(()) => {
                    self.term.extend(sent + beat.tenure());
                    has_warned = false;
                }
                Err(
                    error @ (ObjectError::Fenced
                    | ObjectError::Conflict { .. }
                    | ObjectError::NotFound { .. }),
                ) => {
                    tracing::error!(header = self.header, %error, "another server takes over");
                    self.fence.lose();
                    self.term.end();
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(header = self.header, %error, "a beat failed; it is tried again");
                    }
                }
            }
        }
    }
}

/// What a standby saw of an image.
#[derive(Debug)]
enum Seen {
    /// This beat, for the first time in an answer that came then.
    Beat(Bytes, Time),
    /// A lock without a beat of its holder.
    Lock,
}

/// What a standby saw of the images that it waits for, by their headers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Mutex<HashMap<String, Seen>>,
}

impl Watch {
    /// Looks at the beat of an image. The holder of its lock if that was silent for too long; this standby has claimed the
    /// image then, and is to stop the holder.
    pub(crate) async fn silent(
        &self,
        env: &Env,
        store: &dyn ObjectStore,
        image: &str,
    ) -> Result<Option<LockHolder>, ObjectError> {
        let header = header_name(image);
        let holders = store.holders(&header, LOCK).await?;
        let [holder] = &holders[..] else { return Ok(None) };
        let value = store.attribute(&header, BEAT).await?.unwrap_or_default();
        let answered = env.now();
        let beat = Beat::decode(&value).filter(|beat| beat.cookie == holder.cookie);
        let Some(beat) = beat else {
            self.see_lock(header, holder);
            return Ok(None);
        };
        let Some(since) = self.see(&header, &beat, holder, answered) else { return Ok(None) };
        let left = beat.patience().saturating_sub(env.now().since(since));
        if left > SOON {
            return Ok(None);
        }
        env.sleep(left).await;
        let silence = env.now().since(since);
        match store.apply(&header, beat.claim()).await {
            Ok(()) => {
                let silence = format!("{:.1} s", silence.as_secs_f64());
                tracing::warn!(image, holder = shown(holder), silence, "the server is silent");
                self.seen.lock().remove(&header);
                Ok(Some(holder.clone()))
            }
            // It has a new beat, or another standby was faster.
            Err(ObjectError::Conflict { .. } | ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes a beat; since when it was seen, if it is not new.
    fn see(&self, header: &str, beat: &Beat, holder: &LockHolder, now: Time) -> Option<Time> {
        let mut seen = self.seen.lock();
        let value = beat.value();
        match seen.get(header) {
            Some(Seen::Beat(last, since)) if *last == value => return Some(*since),
            Some(Seen::Beat(..)) => {}
            _ => {
                let lease = format!("{} s", beat.lease().as_secs_f64());
                let holder = shown(holder);
                tracing::info!(
                    header,
                    holder,
                    lease,
                    "waiting until the server is silent for most of a lease"
                );
            }
        }
        seen.insert(header.to_owned(), Seen::Beat(value, now));
        None
    }

    fn see_lock(&self, header: String, holder: &LockHolder) {
        let mut seen = self.seen.lock();
        if !matches!(seen.get(&header), Some(Seen::Lock)) {
            let holder = shown(holder);
            tracing::info!(
                header,
                holder,
                "waiting for the lock, which is not that of a server with beats"
            );
            seen.insert(header, Seen::Lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat() -> Beat {
        Beat { count: 255, ..Beat::first(7, Duration::from_secs(10), "cookie host 1") }
    }

    #[test]
    fn a_beat_has_this_text_and_is_read_back() {
        let value = beat().value();
        let golden = "0000000000000007 00000000 00000000000000ff 10000 cookie host 1";
        assert_eq!(value, golden);
        assert_eq!(Beat::decode(&value), Some(beat()));
        let leaseless = golden.replace("10000", "0");
        for other in ["", "x", "7 0 0 10", &leaseless, "7 0 0 -1 cookie"] {
            assert_eq!(Beat::decode(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_claim_is_greater_than_each_beat_of_its_holder_and_less_than_the_next_holders() {
        let claim = Beat { claims: 1, ..beat() };
        assert!(claim.value() > Beat { count: u64::MAX, ..beat() }.value());
        assert!(claim.value() < Beat::first(8, Duration::from_secs(1), "other").value());
    }
}
