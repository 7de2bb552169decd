/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The wall clock, the time that passed, and what to believe of them.
 *
 * A wall clock can be wrong, and it can be set while idemq runs.  A key must
 * be remembered for idemq.retention of time that really passes, so expiry must
 * not believe the wall clock alone: one that jumps ten years ahead for a
 * minute would wipe out everything.
 *
 * The trusted time T starts from the wall clock, when the extension is created,
 * and from then on never
 * advances by more than the monotonic clock does (idemq.clock keeps the pair).
 * A claim is stamped with s >= T.  So for a claim at the real time r and an
 * expiry at r', T(r') - s <= T(r') - T(r) <= r' - r: what looks older than the
 * retention is older than the retention.  It holds whichever way the wall
 * clock steps in between, and the price is only that keys are kept for longer
 * after a step forward, until somebody calls idemq.accept_clock().  That lets T
 * jump, and holds everything for one more retention: keys that were claimed while
 * the clock was behind carry stamps that are too old.
 *
 * The monotonic clock is comparable within one boot of one machine.  After
 * another (a reboot, a failover, a restored copy) there is nothing to measure
 * the downtime with: the wall clock is believed if it claims an outage no
 * longer than the retention or a day.  So it is on a platform that does not
 * name its boots: there every server start counts as one.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "utils/timestamp.h"

#include "testpoint.h"

#define BOOT_ID_FILE	"/proc/sys/kernel/random/boot_id"

/* The wall clock, as everybody else sees it. */
TimestampTz
clock_wall(void)
{
	return GetCurrentTimestamp() + TEST_CLOCK_OFFSET();
}

/* Microseconds since the machine booted, its sleep included. */
int64
clock_monotonic(void)
{
	struct timespec now;

#ifdef CLOCK_BOOTTIME
	clock_gettime(CLOCK_BOOTTIME, &now);
#else
	clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (int64) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}

/* Names this boot of this machine; an empty string where there is no such name. */
const char *
clock_boot_id(void)
{
	static char boot_id[64] = "";

	if (boot_id[0] == '\0')
	{
		int			fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);

		if (fd >= 0)
		{
			ssize_t		got = read(fd, boot_id, sizeof(boot_id) - 1);

			boot_id[Max(got, 0)] = '\0';
			boot_id[strcspn(boot_id, "\n")] = '\0';
			close(fd);
		}
	}
	return boot_id;
}

/* No claim may be stamped with less than this. */
TimestampTz
clock_floor(const ClockBase *base)
{
	if (!base->known)
		return DT_NOBEGIN;
	if (!base->same_boot)
		return base->high_water;
	return base->high_water + (clock_monotonic() - base->monotonic);
}

/*
 * The time that expiry may believe.
 *
 * Where the wall clock is behind the high-water mark, time goes on with the
 * monotonic clock alone.
 */
TimestampTz
clock_trusted(const ClockBase *base, int64 retention_us)
{
	TimestampTz wall = clock_wall();

	if (!base->known)
		return wall;
	if (!base->same_boot)
	{
		if (wall < base->high_water ||
			wall - base->high_water > Max(retention_us, CLOCK_OUTAGE))
			return base->high_water;
		return wall;
	}
	if (wall < base->high_water)
		return clock_floor(base);
	return Min(wall, clock_floor(base));
}
