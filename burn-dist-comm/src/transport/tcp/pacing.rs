//! How fast the system sends the bytes of a stream.
//!
//! BBR sends at a rate that it estimates from what was sent before. Between collectives nothing is sent, so its
//! estimate stays behind: 1 MiB between two processes of one machine takes up to 1.6 times as long as with CUBIC,
//! which sends what the other end has room for. Where a system is set to BBR, streams take CUBIC; what else it is set
//! to stays.
//!
//! A stream is paced by what it begins with, whatever it is set to later. So it is set before: by who connects, and at
//! the listener by who answers.
//!
//! # Source
//! BBR: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016. CUBIC: RFC 9438.

use super::Connection;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::Result;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

impl Connection {
    /// Returns a stream to another process that a connection can be made of, if that answers within `patience`.
    ///
    /// # Errors
    /// The system's.
    pub fn stream_to(address: SocketAddr, patience: Duration) -> Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        set(SockRef::from(&socket));
        socket.connect_timeout(&address.into(), patience)?;
        Ok(socket.into())
    }

    /// Prepares a listener, before others connect to it, for streams that connections are made of.
    pub fn prepare(listener: &TcpListener) {
        set(SockRef::from(listener));
    }
}

/// A system that does not allow it sends as it is set to.
#[cfg(target_os = "linux")]
fn set(socket: SockRef<'_>) {
    if socket
        .tcp_congestion()
        .is_ok_and(|of_system| of_system.starts_with(b"bbr"))
        && let Err(error) = socket.set_tcp_congestion(b"cubic")
    {
        tracing::debug!("BBR paces what goes between processes: {error}");
    }
}

/// Nothing of that kind is known of other systems.
#[cfg(not(target_os = "linux"))]
fn set(_: SockRef<'_>) {}
