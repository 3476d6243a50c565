//! Unix seconds as text, in UTC, in the layouts of dumpe2fs, stat and `ls --time-style=long-iso`.

const SECONDS_PER_DAY: i64 = 86_400;
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days before each month of a year that begins in March.
const DAYS_BEFORE: [i64; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];

/// A point in time, as a date and time of day.
struct Date {
    year: i64,
    /// 0 for January.
    month: usize,
    day: i64,
    weekday: usize,
    second_of_day: i64,
}

fn index(number: i64) -> usize {
    usize::try_from(number).expect("the remainder by a positive divisor is small and not negative")
}

/// The Gregorian date. It is computed in eras of 400 years, counted from 1 March of year 0.
fn date(seconds: i64) -> Date {
    const DAYS_PER_ERA: i64 = 146_097;
    let days = seconds.div_euclid(SECONDS_PER_DAY);
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march.div_euclid(DAYS_PER_ERA), from_march.rem_euclid(DAYS_PER_ERA));
    // Subtracts the leap days so far in the era: one for every 4 years, less one for every 100,
    // plus one for every 400.
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = DAYS_BEFORE.iter().rposition(|before| *before <= day_of_year).expect("the first is 0");
    Date {
        year: era * 400 + year_of_era + i64::from(month >= 10),
        month: (month + 2) % 12,
        day: day_of_year - DAYS_BEFORE[month] + 1,
        weekday: index(days.rem_euclid(7)),
        second_of_day: seconds.rem_euclid(SECONDS_PER_DAY),
    }
}

fn clock(second_of_day: i64) -> String {
    format!("{:02}:{:02}:{:02}", second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60)
}

/// A time such as `Sat Nov 21 04:46:29 2026`.
pub(super) fn ctime(seconds: i64) -> String {
    let date = date(seconds);
    let clock = clock(date.second_of_day);
    format!("{} {} {:2} {clock} {}", WEEKDAYS[date.weekday], MONTHS[date.month], date.day, date.year)
}

/// A time such as `2026-11-21 04:46:29.000000007`.
pub(super) fn iso(seconds: i64, nanoseconds: u32) -> String {
    let date = date(seconds);
    let clock = clock(date.second_of_day);
    format!("{:04}-{:02}-{:02} {clock}.{nanoseconds:09}", date.year, date.month + 1, date.day)
}

/// A time such as `2026-11-21 04:46`.
pub(super) fn iso_minutes(seconds: i64) -> String {
    let mut text = iso(seconds, 0);
    text.truncate(text.len() - ":SS.nnnnnnnnn".len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(ctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(1_795_236_389), "Sat Nov 21 04:46:29 2026");
        assert_eq!(ctime(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(ctime(951_868_799), "Tue Feb 29 23:59:59 2000");
        assert_eq!(ctime(-1), "Wed Dec 31 23:59:59 1969");
        assert_eq!(ctime(-(1 << 31)), "Fri Dec 13 20:45:52 1901");
        assert_eq!(ctime((3 << 32) + (1 << 31) - 1), "Thu May 10 22:38:55 2446");
        assert_eq!(iso(1_709_164_800, 7), "2024-02-29 00:00:00.000000007");
        assert_eq!(iso_minutes(4_102_444_799), "2099-12-31 23:59");
    }

    #[test]
    fn days_go_up_one_by_one() {
        let mut last = iso(-5_000_000_000, 0);
        for day in 1..200_000i64 {
            let text = iso(-5_000_000_000 + day * SECONDS_PER_DAY, 0);
            assert!(text > last, "{last} then {text}");
            last = text;
        }
    }
}
