/*-------------------------------------------------------------------------
 *
 * rowform.c
 *	  Rows of a result, formed fast.
 *
 * What tuplestore_putvalues() does, in a third of the instructions: the server's
 * functions for this know all kinds of types and go over the columns three
 * times.  Here the columns are integers, times, uuids, and what has a varying length and
 * is in memory; into a tuple that is used again for each row.
 *
 * The layout is that of every row on disk (access/htup_details.h).
 *
 *-------------------------------------------------------------------------
 */
#include "rowform.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

/*
 * What rows take first.  Smaller blocks, doubled again and again, would go back to
 * the operating system at the end of each call, and be faulted in again.
 */
#define FIRST_BLOCK		(1024 * 1024)

/* How much room a row has at first. */
#define FIRST_ROOM		8192

/*
 * A place for the rows where each takes what it needs.  Before 18 the server would take
 * the next power of two, and what is taken and given back at each call costs page faults.
 */
static void
improve_store(FunctionCallInfo fcinfo, ReturnSetInfo *result)
{
#if PG_VERSION_NUM < 180000
	bool		random_access = (result->allowedModes & SFRM_Materialize_Random) != 0;
	MemoryContext old;

	/* one for all calls of a statement */
	if (fcinfo->flinfo->fn_extra == NULL)
		fcinfo->flinfo->fn_extra = GenerationContextCreate(fcinfo->flinfo->fn_mcxt, "idemq rows",
														   0, FIRST_BLOCK,
														   ALLOCSET_DEFAULT_MAXSIZE);
	tuplestore_end(result->setResult);
	old = MemoryContextSwitchTo(fcinfo->flinfo->fn_extra);
	result->setResult = tuplestore_begin_heap(random_access, false, work_mem);
	MemoryContextSwitchTo(old);
#endif
}

/* Get ready to return rows. */
void
rowform_begin(RowForm *form, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	improve_store(fcinfo, result);
	form->store = result->setResult;
	form->desc = result->setDesc;
	form->room = FIRST_ROOM + MAXALIGN(BITMAPLEN(form->desc->natts));
	form->tuple = palloc(form->room);
	form->slot = MakeSingleTupleTableSlot(form->desc, &TTSOpsMinimalTuple);
}

/* Have room for so many bytes, and to align them; the place may move. */
static inline char *
make_room(RowForm *form, char *at, Size size)
{
	Size		used = at - (char *) form->tuple;

	if (likely(used + MAXIMUM_ALIGNOF + size <= form->room))
		return at;
	form->room = Max(used + MAXIMUM_ALIGNOF + size, 2 * form->room);
	form->tuple = repalloc_huge(form->tuple, form->room);
	return (char *) form->tuple + used;
}

/* The next place with an alignment; what is passed over must be zero. */
static inline char *
align(char *at, Size alignment)
{
	while (((uintptr_t) at & (alignment - 1)) != 0)
		*at++ = 0;
	return at;
}

/* Append what has a varying length, with a header as short as it can be. */
static inline char *
put_varlena(RowForm *form, char *at, struct varlena *value)
{
	Size		size = VARSIZE_ANY(value);

	at = make_room(form, at, size);
	if (VARATT_IS_SHORT(value))
		memcpy(at, value, size);
	else if (VARATT_CAN_MAKE_SHORT(value))
	{
		size = VARATT_CONVERTED_SHORT_SIZE(value);
		SET_VARSIZE_SHORT(at, size);
		memcpy(at + 1, VARDATA(value), size - 1);
	}
	else
	{
		Assert(!VARATT_IS_EXTERNAL(value));
		at = align(at, ALIGNOF_INT);
		memcpy(at, value, size);
	}
	return at + size;
}

/* Append a row to the result. */
void
rowform_put(RowForm *form, const Datum *values, const bool *isnull)
{
	int			natts = form->desc->natts;
	bool		hasnull = memchr(isnull, true, natts) != NULL;
	Size		start = MAXALIGN(SizeofMinimalTupleHeader + (hasnull ? BITMAPLEN(natts) : 0));
	char	   *at = (char *) form->tuple + start;

	memset(form->tuple, 0, start);
	form->tuple->t_infomask2 = natts;
	form->tuple->t_infomask = HEAP_HASVARWIDTH | (hasnull ? HEAP_HASNULL : 0);
	form->tuple->t_hoff = start + MINIMAL_TUPLE_OFFSET;
	for (int i = 0; i < natts; i++)
	{
		Datum		value = values[i];

		if (isnull[i])
			continue;
		if (hasnull)
			form->tuple->t_bits[i >> 3] |= 1 << (i & 7);
		switch (TupleDescAttr(form->desc, i)->attlen)
		{
			case -1:
				at = put_varlena(form, at, (struct varlena *) DatumGetPointer(value));
				break;
			case sizeof(int64):
				at = align(make_room(form, at, sizeof(int64)), ALIGNOF_DOUBLE);
				*(int64 *) at = DatumGetInt64(value);
				at += sizeof(int64);
				break;
			case sizeof(int32):
				at = align(make_room(form, at, sizeof(int32)), ALIGNOF_INT);
				*(int32 *) at = DatumGetInt32(value);
				at += sizeof(int32);
				break;
			case UUID_LEN:
				at = make_room(form, at, UUID_LEN);
				memcpy(at, DatumGetPointer(value), UUID_LEN);
				at += UUID_LEN;
				break;
			default:
				elog(ERROR, "a row of a result has a column of an unexpected type");
		}
	}
	form->tuple->t_len = at - (char *) form->tuple;
	ExecStoreMinimalTuple(form->tuple, form->slot, false);
	tuplestore_puttupleslot(form->store, form->slot);
}

/* Enough. */
void
rowform_end(RowForm *form)
{
	ExecDropSingleTupleTableSlot(form->slot);
	pfree(form->tuple);
}
