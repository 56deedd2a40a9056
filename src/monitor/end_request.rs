//! The request of a thread to the supervision of the ranks to end the job.
//!
//! Made once at most. A thread that ends without making it asks for nothing.

use tokio::sync::oneshot;

/// The thread's end of the channel.
#[derive(Debug)]
pub struct EndRequest(Option<oneshot::Sender<()>>);

/// The supervision's end of the channel. The default one is never completed.
#[derive(Debug, Default)]
pub struct Asked(Option<oneshot::Receiver<()>>);

/// Creates both ends of the channel.
pub fn new() -> (EndRequest, Asked) {
    let (make, made) = oneshot::channel();
    (EndRequest(Some(make)), Asked(Some(made)))
}

impl EndRequest {
    /// Asks for the end of the job; the second call has no effect.
    pub fn make(&mut self) {
        if let Some(make) = self.0.take() {
            let _ = make.send(());
        }
    }
}

impl Asked {
    /// Completes when the request is made.
    pub async fn made(self) {
        if let Some(made) = self.0
            && made.await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}
