/*-------------------------------------------------------------------------
 *
 * outbox_emit.c
 *	  Writing events, as SQL sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "outbox.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(outbox_emit);
PG_FUNCTION_INFO_V1(outbox_emit_bytes);

/* The arguments that both functions have; the second is the message. */
static void
get_event(FunctionCallInfo fcinfo, const char *function, OutboxEvent *event)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	memset(event, 0, sizeof(OutboxEvent));

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("aggregatetype must not be null"),
				 errhint("Name the kind of thing that the event is about, such as order.")));
	event->aggregatetype = PG_GETARG_TEXT_PP(0);
	if (VARSIZE_ANY_EXHDR(event->aggregatetype) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("aggregatetype is empty"),
				 errhint("Name the kind of thing that the event is about, such as order.")));
	if (!PG_ARGISNULL(2))
		event->aggregateid = PG_GETARG_TEXT_PP(2);
	if (!PG_ARGISNULL(3))
		event->type = PG_GETARG_TEXT_PP(3);
	if (!PG_ARGISNULL(4))
		event->headers = PG_GETARG_DATUM(4);
	event->has_not_before = !PG_ARGISNULL(5);
	if (event->has_not_before)
		event->not_before = PG_GETARG_TIMESTAMPTZ(5);
	if (event->has_not_before && TIMESTAMP_NOT_FINITE(event->not_before))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("not_before must be finite"),
				 errhint("An event that is never delivered would keep its partition for ever.")));
}

/* Write an event, and answer with its id. */
static Datum
emit(const OutboxEvent *event)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	outbox_append(event, id);
	PG_RETURN_UUID_P(id);
}

/*
 * outbox_emit(aggregatetype text, payload jsonb, aggregateid text, type text,
 * headers jsonb, not_before timestamptz) returns uuid
 */
Datum
outbox_emit(PG_FUNCTION_ARGS)
{
	OutboxEvent event;

	get_event(fcinfo, "outbox_emit()", &event);
	if (!PG_ARGISNULL(1))
		event.payload = PG_GETARG_DATUM(1);
	return emit(&event);
}

/*
 * outbox_emit_bytes(aggregatetype text, body bytea, aggregateid text, type text,
 * headers jsonb, not_before timestamptz) returns uuid
 */
Datum
outbox_emit_bytes(PG_FUNCTION_ARGS)
{
	OutboxEvent event;

	get_event(fcinfo, "outbox_emit_bytes()", &event);
	if (!PG_ARGISNULL(1))
		event.body = PG_GETARG_DATUM(1);
	return emit(&event);
}
