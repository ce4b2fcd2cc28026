//! A timer for spans below the runtime's grain of a millisecond.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::Env;

/// A timer that the kernel keeps and the runtime waits for: no thread sleeps for it. See [`Env::alarm`].
#[derive(Debug)]
pub struct Alarm {
    env: Env,
    /// Made by the first sleep; `None` in virtual time.
    timer: Option<AsyncFd<KernelTimer>>,
}

#[derive(Debug)]
struct KernelTimer(TimerFd);

impl AsRawFd for KernelTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Env {
    /// A timer for one sleep at a time.
    pub fn alarm(&self) -> Alarm {
        Alarm { env: self.clone(), timer: None }
    }
}

impl Alarm {
    /// Sleeps for `span`, as precisely as the system allows. Dropping the future stops the timer.
    pub async fn sleep(&mut self, span: Duration) {
        if self.env.is_simulated() || self.ring(span).await.is_err() {
            // Without a timer of the kernel, the runtime's is precise enough.
            self.env.sleep(span).await;
        }
    }

    async fn ring(&mut self, span: Duration) -> io::Result<()> {
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => {
                let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
                let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
                // SAFETY: the descriptor is the timer's own, which closes it after it is deregistered.
                none.insert(unsafe {
                    AsyncFd::register_with_interest(KernelTimer(timer), Interest::READABLE)?
                })
            }
        };
        // A span of zero would stop the timer.
        let span = TimeSpec::from_duration(span.max(Duration::from_nanos(1)));
        timer.get_ref().0.set(Expiration::OneShot(span), TimerSetTimeFlags::empty())?;
        let timer = Armed(timer);
        loop {
            let mut ready = timer.0.readable().await?;
            // The readiness may be that of an earlier sleep.
            if let Ok(rung) = ready.try_io(|timer| Ok(timer.get_ref().0.wait()?)) {
                return rung;
            }
        }
    }
}

/// A timer that is running; stopped when dropped, so that it wakes no thread for nothing.
struct Armed<'a>(&'a AsyncFd<KernelTimer>);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        // A timer that cannot be stopped rings once more, which the next sleep expects.
        self.0.get_ref().0.unset().ok();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    #[tokio::test]
    async fn a_sleep_is_as_long_as_its_span_also_after_one_that_was_dropped() {
        let env = Env::real();
        let mut alarm = env.alarm();
        for _ in 0..5 {
            let dropped = env.timeout(Duration::ZERO, alarm.sleep(Duration::from_secs(10))).await;
            assert!(dropped.is_none());
            let (begun, span) = (env.now(), Duration::from_micros(700));
            alarm.sleep(span).await;
            let took = env.now().since(begun);
            assert!(took >= span, "{took:?}");
        }
    }

    #[tokio::test]
    async fn a_sleep_that_rang_unheard_does_not_shorten_the_next() {
        let env = Env::real();
        let mut alarm = env.alarm();
        {
            let mut unheard = std::pin::pin!(alarm.sleep(Duration::from_micros(100)));
            let poll = |cx: &mut Context<'_>| Poll::Ready(unheard.as_mut().poll(cx).is_ready());
            std::future::poll_fn(poll).await;
            env.sleep(Duration::from_millis(2)).await;
        }
        let begun = env.now();
        alarm.sleep(Duration::from_millis(5)).await;
        assert!(env.now().since(begun) >= Duration::from_millis(5));
    }
}
