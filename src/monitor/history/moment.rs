//! Times and durations as the journal writes them.

use time::{Date, Month, Time};

/// Milliseconds since 1970, UTC.
pub(crate) type Millis = u64;

/// `2026-11-23T18:00:02.697792Z`
pub(super) fn moment(stamp: &str) -> Option<Millis> {
    let stamp = stamp.strip_suffix('Z')?;
    let (date, clock) = stamp.split_once('T')?;
    let mut date = date.splitn(3, '-');
    let mut next = || date.next();
    let (year, month, day) = (next()?.parse().ok()?, next()?.parse::<u8>().ok()?, next()?);
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day.parse().ok()?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':');
    let mut next = || clock.next()?.parse::<u8>().ok();
    let time = Time::from_hms(next()?, next()?, next()?).ok()?;
    let digits = fraction.get(..fraction.len().min(3))?;
    let scale = [1000, 100, 10, 1].get(digits.len())?;
    let millis = u64::from(digits.parse::<u16>().ok()?) * scale;
    let seconds = date.ok()?.with_time(time).assume_utc().unix_timestamp();
    Some(u64::try_from(seconds).ok()?.saturating_mul(1000).saturating_add(millis))
}

/// `16.1s`, `58.8ms`, `29.2µs`, `100ns` of `tracing`, in milliseconds.
pub(super) fn span(text: &str) -> Option<f64> {
    let at = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = text.split_at_checked(at)?;
    let scale = match unit {
        "ns" => 1e-6,
        "µs" => 1e-3,
        "ms" => 1.0,
        "s" => 1000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}
