/* kafka_settings.h: librdkafka's settings, and what we insist on. */
#ifndef KAFKA_SETTINGS_H
#define KAFKA_SETTINGS_H

#include <librdkafka/rdkafka.h>

#include "settings.h"

/* NULL, or what is wrong (malloc'd).  brokers: host:port,... */
extern char *kafka_settings_make(rd_kafka_conf_t *conf, const char *brokers, const SettingPair *pairs);

#endif
